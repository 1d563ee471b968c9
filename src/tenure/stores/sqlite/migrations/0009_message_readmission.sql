-- Readmitted messages say so among what operators did to them.
CREATE TABLE tenure_message_decision_new (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    decision TEXT NOT NULL CHECK (decision IN ('replayed', 'discarded', 'readmitted')),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL CHECK (actor <> ''),
    reason TEXT NOT NULL CHECK (reason <> ''),
    attempts INTEGER NOT NULL,
    command_id TEXT NOT NULL,
    PRIMARY KEY (message_id, tenant, at, command_id)
) WITHOUT ROWID;
INSERT INTO tenure_message_decision_new SELECT * FROM tenure_message_decision;
DROP TABLE tenure_message_decision;
ALTER TABLE tenure_message_decision_new RENAME TO tenure_message_decision;
