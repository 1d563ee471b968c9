"""
Explore every interleaving of two workers, one job and one effect, with the rules that the package runs.

    report = tenure.lab.explore()                        # the package as it is: every state, every promise
    report = tenure.lab.explore(variant="no-fence")      # one rule broken: the shortest way to see why it is there
    print(report.violation)
"""

from tenure.lab.catalogue import configurations
from tenure.lab.configuration import Configuration
from tenure.lab.explore import PROMISES, explore
from tenure.lab.report import Report, Step, Trace
from tenure.lab.variants import Variant, variants

__all__ = [
    "PROMISES",
    "Configuration",
    "Report",
    "Step",
    "Trace",
    "Variant",
    "configurations",
    "explore",
    "variants",
]
