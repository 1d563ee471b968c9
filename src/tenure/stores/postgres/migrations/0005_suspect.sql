-- Jobs of a restored copy that may still run: what they did after the backup is not known here. A final job's row says
-- nothing any more, and is removed when somebody comes by.

CREATE TABLE tenure.suspect (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    marked_at bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    actor text NOT NULL CHECK (actor <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    recovery_id uuid NOT NULL,
    PRIMARY KEY (job_id, tenant)
);
