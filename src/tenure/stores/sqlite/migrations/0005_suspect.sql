-- Jobs of a restored copy that may still run: what they did after the backup is not known here. A final job's row says
-- nothing any more, and is removed when somebody comes by.

CREATE TABLE tenure_suspect (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    marked_at INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    actor TEXT NOT NULL CHECK (actor <> ''),
    reason TEXT NOT NULL CHECK (reason <> ''),
    recovery_id TEXT NOT NULL,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;
