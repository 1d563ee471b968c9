"""
Experiments at the edges of commits and calls, each on a real database with a real fault.

Every one of them looks at what is stored, and at what the provider wrote down; has a control that is allowed and must
pass in the same run; and has broken variants that it must notice.
"""

from __future__ import annotations
