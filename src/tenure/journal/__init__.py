"""
What must survive the database: append-only files that are durable when an append returns.

`Journal` writes one, `read`, `verify` and `dump` look at one, `repair` puts a damaged tail aside. `ReceiptJournal` and
`hand_in` keep the receipts of outside calls while the database is gone. docs/explanation/journal.md says what is
promised.
"""

from tenure.journal.frame import Record, Tail
from tenure.journal.mender import Repair, repair
from tenure.journal.reader import Reading, Verification, dump, read, verify
from tenure.journal.receipts import HandIn, LeftFile, ReceiptJournal, RefusedReceipt, hand_in
from tenure.journal.storage import KERNEL, Facts, KernelStorage, Storage
from tenure.journal.writer import Journal

__all__ = [
    "KERNEL",
    "Facts",
    "HandIn",
    "Journal",
    "KernelStorage",
    "LeftFile",
    "Reading",
    "ReceiptJournal",
    "Record",
    "RefusedReceipt",
    "Repair",
    "Storage",
    "Tail",
    "Verification",
    "dump",
    "hand_in",
    "read",
    "repair",
    "verify",
]
