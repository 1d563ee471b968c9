-- Queues that are paused, owned or draining; what live workers say about themselves; and a way to the few finished jobs
-- that somebody has to look at, past all the others.

ALTER TABLE tenure.queue
    ADD COLUMN paused_at bigint,
    ADD COLUMN paused_by text,
    ADD COLUMN pause_reason text,
    ADD COLUMN owner text CHECK (owner <> ''),
    ADD COLUMN draining_at bigint;
-- Claims and creations ask for the queues that are closed to them; nearly always there are none.
CREATE INDEX queue_closed ON tenure.queue (name) WHERE paused_at IS NOT NULL OR owner IS NOT NULL;

-- What people did with queues: never updated.
CREATE TABLE tenure.queue_change (
    change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    at bigint NOT NULL,
    what text NOT NULL CHECK (what IN ('paused', 'resumed', 'draining', 'transferred')),
    actor text NOT NULL,
    reason text,
    old_owner text,
    new_owner text,
    jobs bigint,
    command_id uuid NOT NULL
);
CREATE INDEX queue_change_queue ON tenure.queue_change (queue, change_id);

ALTER TABLE tenure.announcement
    ADD COLUMN owner text,
    ADD COLUMN providers text[] NOT NULL DEFAULT '{}';

-- Every kind that a worker ever announced: another one is a mistake, and not a worker that is away.
CREATE TABLE tenure.known_kind (name text NOT NULL PRIMARY KEY);

CREATE INDEX outcome_attention ON tenure.outcome (status, job_id) WHERE status IN ('failed', 'dead_letter', 'halt_unsafe');
