"""
What a user's own tests need: a clock to move, a provider to script, a provider to run against.

Nothing in the package imports this; it is for tests alone.
"""

from tenure.connectors.simulator import Fault, ProviderSimulator, SimulatorProcess
from tenure.testing.clock import ManualClock
from tenure.testing.provider import Act, FakeProvider, Step

__all__ = ["Act", "FakeProvider", "Fault", "ManualClock", "ProviderSimulator", "SimulatorProcess", "Step"]
