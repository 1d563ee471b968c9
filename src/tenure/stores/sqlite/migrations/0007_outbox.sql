-- Messages that leave with a commit, and messages that are applied once.
-- A message is in exactly one of message_due, message_later, message_lease, message_resting, message_done: that row is its
-- place and is what a procedure locks. `subject` is empty there for a message that need not keep an order.

-- The immutable body: never updated. The position is given by the database, in the order of the inserts, not of the commits.
CREATE TABLE tenure_message (
    position INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    destination TEXT NOT NULL CHECK (destination <> ''),
    operation TEXT NOT NULL CHECK (operation <> ''),
    type TEXT NOT NULL CHECK (type <> ''),
    version INTEGER NOT NULL CHECK (version >= 1),
    subject TEXT,
    ordered INTEGER NOT NULL CHECK (ordered IN (0, 1)),
    data TEXT NOT NULL,
    attempts_max INTEGER NOT NULL CHECK (attempts_max >= 1),
    scheduled_at INTEGER NOT NULL CHECK (scheduled_at < 253370764800000000),
    created_at INTEGER NOT NULL,
    digest TEXT NOT NULL,
    UNIQUE (message_id, tenant),
    CHECK (NOT ordered OR subject IS NOT NULL)
);
CREATE UNIQUE INDEX tenure_message_operation ON tenure_message (tenant, destination, operation);

-- Where claims look: due, and nothing stands in the way as far as anybody knows. Only inserted and deleted.
CREATE TABLE tenure_message_due (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT,
    position INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    PRIMARY KEY (position, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_message_due_order ON tenure_message_due (destination, since, position);

-- Planned for later, or between two attempts: a future row must cost a claim nothing.
CREATE TABLE tenure_message_later (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT,
    position INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (position, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_message_later_due ON tenure_message_later (due_at, position);
CREATE INDEX tenure_message_later_tried ON tenure_message_later (since) WHERE attempt > 0;

-- Being delivered. Expiry is in no index, as with the leases of jobs.
CREATE TABLE tenure_message_lease (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT,
    position INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 1),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    relay_id TEXT NOT NULL CHECK (relay_id <> ''),
    expires_at INTEGER NOT NULL,
    command_id TEXT NOT NULL,
    PRIMARY KEY (position, tenant)
) WITHOUT ROWID;

-- Not offered to relays: behind another message of the same subject, under an authority that does not admit it, or set
-- aside for a person.
CREATE TABLE tenure_message_resting (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT,
    position INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    state TEXT NOT NULL CHECK (state IN ('blocked', 'held', 'set_aside')),
    PRIMARY KEY (position, tenant),
    CHECK (state <> 'blocked' OR subject IS NOT NULL),
    CHECK (state <> 'set_aside' OR error_code IS NOT NULL)
) WITHOUT ROWID;
CREATE INDEX tenure_message_resting_held ON tenure_message_resting (tenant, epoch) WHERE state = 'held';
CREATE INDEX tenure_message_resting_unknown ON tenure_message_resting (destination) WHERE error_code = 'UNKNOWN_DESTINATION';
CREATE INDEX tenure_message_resting_since ON tenure_message_resting (since) WHERE state <> 'held';

-- Delivered or discarded; kept for a while, because it keeps the operation known.
CREATE TABLE tenure_message_done (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT,
    position INTEGER NOT NULL,
    since INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    state TEXT NOT NULL CHECK (state IN ('delivered', 'discarded')),
    done_at INTEGER NOT NULL,
    receipt TEXT,
    PRIMARY KEY (position, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_message_done_age ON tenure_message_done (done_at);

-- One row for each undelivered message that keeps an order: the first of a subject is the one that may go.
CREATE TABLE tenure_message_order (
    tenant TEXT NOT NULL,
    destination TEXT NOT NULL,
    subject TEXT NOT NULL,
    position INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (tenant, destination, subject, position)
) WITHOUT ROWID;

-- Who replayed or discarded what, and why: append-only.
CREATE TABLE tenure_message_decision (
    message_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    decision TEXT NOT NULL CHECK (decision IN ('replayed', 'discarded')),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL CHECK (actor <> ''),
    reason TEXT NOT NULL CHECK (reason <> ''),
    attempts INTEGER NOT NULL,
    command_id TEXT NOT NULL,
    PRIMARY KEY (message_id, tenant, at, command_id)
) WITHOUT ROWID;

-- Which destinations live relays serve; what nobody serves is set aside.
CREATE TABLE tenure_message_relay (
    relay_id TEXT NOT NULL PRIMARY KEY CHECK (relay_id <> ''),
    destinations TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What a consumer said about itself at its first use.
CREATE TABLE tenure_inbox_consumer (
    consumer TEXT NOT NULL PRIMARY KEY CHECK (consumer <> ''),
    replay_window_us INTEGER NOT NULL CHECK (replay_window_us > 0),
    retention_us INTEGER NOT NULL CHECK (retention_us >= replay_window_us)
) WITHOUT ROWID;

-- What a consumer has applied, written in its own transaction.
CREATE TABLE tenure_inbox (
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    consumer TEXT NOT NULL CHECK (consumer <> ''),
    operation TEXT NOT NULL CHECK (operation <> ''),
    digest TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    seen INTEGER NOT NULL CHECK (seen >= 1),
    PRIMARY KEY (tenant, consumer, operation)
) WITHOUT ROWID;
CREATE INDEX tenure_inbox_age ON tenure_inbox (consumer, received_at);

-- Arrivals: the same operation may arrive under many of them.
CREATE TABLE tenure_inbox_delivery (
    tenant TEXT NOT NULL,
    consumer TEXT NOT NULL,
    delivery_id TEXT NOT NULL CHECK (delivery_id <> ''),
    operation TEXT NOT NULL,
    PRIMARY KEY (tenant, consumer, delivery_id)
) WITHOUT ROWID;
CREATE INDEX tenure_inbox_delivery_operation ON tenure_inbox_delivery (tenant, consumer, operation);

CREATE VIEW tenure_message_place AS
SELECT 'due' AS place, message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'due' AS state, since AS due_at, NULL AS relay_id, NULL AS expires_at,
    NULL AS done_at, NULL AS receipt
FROM tenure_message_due
UNION ALL
SELECT 'later', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'later', due_at, NULL, NULL, NULL, NULL
FROM tenure_message_later
UNION ALL
SELECT 'lease', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, 'delivering', since, relay_id, expires_at, NULL, NULL
FROM tenure_message_lease
UNION ALL
SELECT 'resting', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, state, since, NULL, NULL, NULL, NULL
FROM tenure_message_resting
UNION ALL
SELECT 'done', message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max,
    epoch, error_code, error_message, state, since, NULL, NULL, done_at, receipt
FROM tenure_message_done;
