-- Queues that are paused, owned or draining; what live workers say about themselves; and a way to the few finished jobs
-- that somebody has to look at, past all the others.

ALTER TABLE tenure_queue ADD COLUMN paused_at INTEGER;
ALTER TABLE tenure_queue ADD COLUMN paused_by TEXT;
ALTER TABLE tenure_queue ADD COLUMN pause_reason TEXT;
ALTER TABLE tenure_queue ADD COLUMN owner TEXT CHECK (owner <> '');
ALTER TABLE tenure_queue ADD COLUMN draining_at INTEGER;

-- What people did with queues: never updated.
CREATE TABLE tenure_queue_change (
    change_id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    at INTEGER NOT NULL,
    what TEXT NOT NULL CHECK (what IN ('paused', 'resumed', 'draining', 'transferred')),
    actor TEXT NOT NULL,
    reason TEXT,
    old_owner TEXT,
    new_owner TEXT,
    jobs INTEGER,
    command_id TEXT NOT NULL
);
CREATE INDEX tenure_queue_change_queue ON tenure_queue_change (queue, change_id);

ALTER TABLE tenure_announcement ADD COLUMN owner TEXT;
ALTER TABLE tenure_announcement ADD COLUMN providers TEXT NOT NULL DEFAULT '[]';

-- Every kind that a worker ever announced: another one is a mistake, and not a worker that is away.
CREATE TABLE tenure_known_kind (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;

CREATE INDEX tenure_outcome_attention ON tenure_outcome (status, job_id)
    WHERE status IN ('failed', 'dead_letter', 'halt_unsafe');
