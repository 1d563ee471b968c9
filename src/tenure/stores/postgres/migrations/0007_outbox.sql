-- Messages that leave with a commit, and messages that are applied once.
-- A message is in exactly one of message_due, message_later, message_lease, message_resting, message_done: that row is its
-- place and is what a procedure locks. `subject` is empty there for a message that need not keep an order.

-- The immutable body: never updated. The position is given by the database, in the order of the inserts, not of the commits.
CREATE TABLE tenure.message (
    message_id uuid NOT NULL,
    tenant text NOT NULL CHECK (tenant <> ''),
    destination text NOT NULL CHECK (destination <> ''),
    operation text NOT NULL CHECK (operation <> ''),
    type text NOT NULL CHECK (type <> ''),
    version integer NOT NULL CHECK (version >= 1),
    subject text,
    ordered boolean NOT NULL,
    data json NOT NULL,
    attempts_max integer NOT NULL CHECK (attempts_max >= 1),
    scheduled_at bigint NOT NULL CHECK (scheduled_at < 253370764800000000),
    created_at bigint NOT NULL,
    digest text NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (message_id, tenant),
    CHECK (NOT ordered OR subject IS NOT NULL)
);
CREATE UNIQUE INDEX message_operation ON tenure.message (tenant, destination, operation);

-- Where claims look: due, and nothing stands in the way as far as anybody knows. Only inserted and deleted.
CREATE TABLE tenure.message_due (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text,
    position bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    PRIMARY KEY (position, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX message_due_order ON tenure.message_due (destination, since, position);

-- Planned for later, or between two attempts: a future row must cost a claim nothing.
CREATE TABLE tenure.message_later (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text,
    position bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    due_at bigint NOT NULL,
    PRIMARY KEY (position, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX message_later_due ON tenure.message_later (due_at, position);
CREATE INDEX message_later_tried ON tenure.message_later (since) WHERE attempt > 0;

-- Being delivered. Expiry is in no index, as with the leases of jobs.
CREATE TABLE tenure.message_lease (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text,
    position bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 1),
    attempt integer NOT NULL CHECK (attempt >= 1),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    relay_id text NOT NULL CHECK (relay_id <> ''),
    expires_at bigint NOT NULL,
    command_id uuid NOT NULL,
    PRIMARY KEY (position, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);

-- Not offered to relays: behind another message of the same subject, under an authority that does not admit it, or set
-- aside for a person.
CREATE TABLE tenure.message_resting (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text,
    position bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    state text NOT NULL CHECK (state IN ('blocked', 'held', 'set_aside')),
    PRIMARY KEY (position, tenant),
    CHECK (state <> 'blocked' OR subject IS NOT NULL),
    CHECK (state <> 'set_aside' OR error_code IS NOT NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX message_resting_held ON tenure.message_resting (tenant, epoch) WHERE state = 'held';
CREATE INDEX message_resting_unknown ON tenure.message_resting (destination) WHERE error_code = 'UNKNOWN_DESTINATION';
CREATE INDEX message_resting_since ON tenure.message_resting (since) WHERE state <> 'held';

-- Delivered or discarded; kept for a while, because it keeps the operation known.
CREATE TABLE tenure.message_done (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text,
    position bigint NOT NULL,
    since bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    state text NOT NULL CHECK (state IN ('delivered', 'discarded')),
    done_at bigint NOT NULL,
    receipt json,
    PRIMARY KEY (position, tenant)
);
CREATE INDEX message_done_age ON tenure.message_done (done_at);

-- One row for each undelivered message that keeps an order: the first of a subject is the one that may go.
CREATE TABLE tenure.message_order (
    tenant text NOT NULL,
    destination text NOT NULL,
    subject text NOT NULL,
    position bigint NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (tenant, destination, subject, position)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Who replayed or discarded what, and why: append-only.
CREATE TABLE tenure.message_decision (
    message_id uuid NOT NULL,
    tenant text NOT NULL,
    decision text NOT NULL CHECK (decision IN ('replayed', 'discarded')),
    at bigint NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    attempts integer NOT NULL,
    command_id uuid NOT NULL,
    PRIMARY KEY (message_id, tenant, at, command_id)
);

-- Which destinations live relays serve; what nobody serves is set aside.
CREATE TABLE tenure.message_relay (
    relay_id text NOT NULL PRIMARY KEY CHECK (relay_id <> ''),
    destinations text[] NOT NULL,
    expires_at bigint NOT NULL
);

-- What a consumer said about itself at its first use.
CREATE TABLE tenure.inbox_consumer (
    consumer text NOT NULL PRIMARY KEY CHECK (consumer <> ''),
    replay_window_us bigint NOT NULL CHECK (replay_window_us > 0),
    retention_us bigint NOT NULL CHECK (retention_us >= replay_window_us)
);

-- What a consumer has applied, written in its own transaction.
CREATE TABLE tenure.inbox (
    tenant text NOT NULL CHECK (tenant <> ''),
    consumer text NOT NULL CHECK (consumer <> ''),
    operation text NOT NULL CHECK (operation <> ''),
    digest text NOT NULL,
    delivery_id text NOT NULL,
    received_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    seen bigint NOT NULL CHECK (seen >= 1),
    PRIMARY KEY (tenant, consumer, operation)
) WITH (fillfactor = 80);
CREATE INDEX inbox_age ON tenure.inbox (consumer, received_at);

-- Arrivals: the same operation may arrive under many of them.
CREATE TABLE tenure.inbox_delivery (
    tenant text NOT NULL,
    consumer text NOT NULL,
    delivery_id text NOT NULL CHECK (delivery_id <> ''),
    operation text NOT NULL,
    PRIMARY KEY (tenant, consumer, delivery_id)
);
CREATE INDEX inbox_delivery_operation ON tenure.inbox_delivery (tenant, consumer, operation);

CREATE VIEW tenure.message_place AS
SELECT 'due'::text AS place, message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'due'::text AS state, since AS due_at, NULL::text AS relay_id, NULL::bigint AS expires_at,
    NULL::bigint AS done_at, NULL::text AS receipt
FROM tenure.message_due
UNION ALL
SELECT 'later', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'later', due_at, NULL, NULL, NULL, NULL
FROM tenure.message_later
UNION ALL
SELECT 'lease', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'delivering', since, relay_id, expires_at, NULL, NULL
FROM tenure.message_lease
UNION ALL
SELECT 'resting', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, state, since, NULL, NULL, NULL, NULL
FROM tenure.message_resting
UNION ALL
SELECT 'done', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, state, since, NULL, NULL, done_at, receipt::text
FROM tenure.message_done;
