"""
What a user's own tests need: a clock to move, providers to script and to run against, places to die at.

Nothing in the package imports this; it is for tests alone.
"""

from tenure.connectors.simulator import Fault, ProviderSimulator, SimulatorProcess
from tenure.testing.clock import ManualClock
from tenure.testing.crash_points import CrashPoints, known_points
from tenure.testing.provider import Act, FakeProvider, Step

__all__ = [
    "Act",
    "CrashPoints",
    "FakeProvider",
    "Fault",
    "ManualClock",
    "ProviderSimulator",
    "SimulatorProcess",
    "Step",
    "known_points",
]
