-- The SQLite store's statements about messages that leave, in the order of the PostgreSQL twin. How they are written is
-- said at the head of statements.sql.

-- name: message_insert(message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max, scheduled_at, digest) each
-- writes message, and message_due or message_later, and message_order, where operation and id are new; gives what is new.
-- Waits for another transaction that adds the same operation. The tenant's authority row is there already.
INSERT INTO tenure_message (message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max, scheduled_at, created_at, digest)
SELECT :message_id, :tenant, :destination, :operation, :type, :version, :subject, :ordered, :data, :attempts_max, COALESCE(:scheduled_at, :now), :now, :digest
WHERE 1 ON CONFLICT DO NOTHING
RETURNING tenant, message_id, (SELECT a.epoch FROM tenure_authority a WHERE a.tenant = :tenant), created_at;

INSERT INTO tenure_message_order (tenant, destination, subject, position, message_id)
SELECT m.tenant, m.destination, m.subject, m.position, m.message_id FROM tenure_message m
WHERE m.message_id = :message_id AND m.tenant = :tenant AND m.ordered = 1
    AND NOT EXISTS (SELECT 1 FROM tenure_message_due p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_later p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_lease p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_resting p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_done p WHERE p.position = m.position);

INSERT INTO tenure_message_later (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at)
SELECT m.message_id, m.tenant, m.destination, CASE WHEN m.ordered THEN m.subject END, m.position, m.scheduled_at, 0, 0, m.attempts_max, a.epoch, NULL, NULL, m.scheduled_at
FROM tenure_message m JOIN tenure_authority a ON a.tenant = m.tenant
WHERE m.message_id = :message_id AND m.tenant = :tenant AND m.scheduled_at > m.created_at
    AND NOT EXISTS (SELECT 1 FROM tenure_message_due p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_later p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_lease p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_resting p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_done p WHERE p.position = m.position);

INSERT INTO tenure_message_due (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT m.message_id, m.tenant, m.destination, CASE WHEN m.ordered THEN m.subject END, m.position, m.scheduled_at, 0, 0, m.attempts_max, a.epoch, NULL, NULL
FROM tenure_message m JOIN tenure_authority a ON a.tenant = m.tenant
WHERE m.message_id = :message_id AND m.tenant = :tenant AND m.scheduled_at <= m.created_at
    AND NOT EXISTS (SELECT 1 FROM tenure_message_due p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_later p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_lease p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_resting p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT 1 FROM tenure_message_done p WHERE p.position = m.position);

-- name: message_known(tenant, destination, operation) each
-- locks nothing; the messages that have these operations
SELECT m.tenant, m.destination, m.operation, m.message_id, m.digest, p.epoch, m.created_at
FROM tenure_message m JOIN tenure_message_place p ON p.position = m.position AND p.tenant = m.tenant
WHERE m.tenant = :tenant AND m.destination = :destination AND m.operation = :operation;

-- name: message_front(destination, limit) once
-- locks the due messages it looks at and then their tenants' authority, shared, skipping what is locked; the claim's
-- choice, oldest first. Whoever takes authority away either waits for the claim, or is seen by it, or is passed over; the
-- messages come first here, so nobody may be waited for. Nothing on a frozen database. The last column is the position
-- of the first of the subject.
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message,
    b.operation, b.type, b.version, b.subject, b.ordered, b.data, b.scheduled_at, b.created_at, b.digest,
    a.epoch, a.frozen, 0, :now,
    (
        SELECT o.position FROM tenure_message_order o
        WHERE o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM (SELECT * FROM tenure_message_due WHERE destination = :destination ORDER BY since, position LIMIT :limit) p
CROSS JOIN tenure_message b ON b.position = p.position
JOIN tenure_authority a ON a.tenant = p.tenant
WHERE NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY p.since, p.position;

-- name: message_claimed(command_id) once
-- locks nothing; what an earlier run of the same claim took and its leases still hold, with the columns of message_front
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message,
    b.operation, b.type, b.version, b.subject, b.ordered, b.data, b.scheduled_at, b.created_at, b.digest,
    a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now, NULL
FROM tenure_message_lease p
JOIN tenure_message b ON b.message_id = p.message_id AND b.tenant = p.tenant
JOIN tenure_authority a ON a.tenant = p.tenant
WHERE p.command_id = :command_id AND p.expires_at - :now > 0
ORDER BY p.since, p.position;

-- name: message_order_share(tenant, destination, subject, position) each
-- locks the order rows of messages that others are behind, shared, skipping those whose message is just being finished:
-- what is put behind a locked one is seen by whoever finishes it
SELECT tenant, destination, subject, position FROM tenure_message_order
WHERE tenant = :tenant AND destination = :destination AND subject = :subject AND position = :position;

-- name: message_due_delete(position, generation) each
-- writes message_due: the row must still have this generation
DELETE FROM tenure_message_due WHERE position = :position AND generation = :generation RETURNING position;

-- name: message_later_delete(position, generation) each
-- writes message_later: the row must still have this generation
DELETE FROM tenure_message_later WHERE position = :position AND generation = :generation RETURNING position;

-- name: message_lease_delete(position, generation) each
-- writes message_lease: the row must still have this generation
DELETE FROM tenure_message_lease WHERE position = :position AND generation = :generation RETURNING position;

-- name: message_resting_delete(position, generation) each
-- writes message_resting: the row must still have this generation
DELETE FROM tenure_message_resting WHERE position = :position AND generation = :generation RETURNING position;

-- name: message_due_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes message_due
INSERT INTO tenure_message_due (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message)
VALUES (:message_id, :tenant, :destination, :subject, :position, :since, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message);

-- name: message_later_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at) each
-- writes message_later
INSERT INTO tenure_message_later (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at)
VALUES (:message_id, :tenant, :destination, :subject, :position, :since, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message, :due_at);

-- name: message_lease_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id) each
-- writes message_lease
INSERT INTO tenure_message_lease (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id)
VALUES (:message_id, :tenant, :destination, :subject, :position, :since, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message, :relay_id, :expires_at, :command_id);

-- name: message_resting_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state) each
-- writes message_resting
INSERT INTO tenure_message_resting (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state)
VALUES (:message_id, :tenant, :destination, :subject, :position, :since, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message, :state);

-- name: message_done_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt) each
-- writes message_done
INSERT INTO tenure_message_done (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt)
VALUES (:message_id, :tenant, :destination, :subject, :position, :since, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message, :state, :done_at, :receipt);

-- name: message_lease_lock(position) each
-- locks the leases named, in order; the fence of every finish
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_message_lease WHERE position = :position;

-- name: message_order_delete(tenant, destination, subject, position) each
-- writes message_order: a message is delivered or discarded; waits for whoever puts another one behind it
DELETE FROM tenure_message_order
WHERE tenant = :tenant AND destination = :destination AND subject = :subject AND position = :position;

-- name: message_order_next(tenant, destination, subject) each
-- locks the first message of a subject, where it is blocked
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message
FROM (
    SELECT o.position FROM tenure_message_order o
    WHERE o.tenant = :tenant AND o.destination = :destination AND o.subject = :subject
    ORDER BY o.position LIMIT 1
) n
JOIN tenure_message_resting r ON r.position = n.position
WHERE r.state = 'blocked';

-- name: message_later_due(limit) once
-- locks the planned messages that are due, skipping locked ones
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message FROM tenure_message_later WHERE due_at <= :now ORDER BY due_at, position LIMIT :limit;

-- name: message_lease_expired(limit) once
-- locks the leases that have ended, skipping locked ones; none on a frozen database
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message FROM tenure_message_lease
WHERE expires_at - :now <= 0 AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY position LIMIT :limit;

-- name: message_held_free(limit) once
-- locks held messages whose authority admits them again, skipping locked ones; asks each tenant for its own
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message FROM tenure_authority a
CROSS JOIN tenure_message_resting r ON r.tenant = a.tenant AND r.epoch = a.epoch AND r.state = 'held'
WHERE a.frozen = 0 AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
LIMIT :limit;

-- name: message_relay_save(relay_id, destinations, lifetime_us) once
-- writes message_relay
INSERT INTO tenure_message_relay (relay_id, destinations, expires_at) VALUES (:relay_id, :destinations, :now + :lifetime_us)
ON CONFLICT (relay_id) DO UPDATE SET destinations = excluded.destinations, expires_at = excluded.expires_at;

-- name: message_relay_delete(relay_id) once
-- writes message_relay: forgets a relay, and every one that was not heard of again
DELETE FROM tenure_message_relay WHERE relay_id = :relay_id OR expires_at <= :now;

-- name: message_unknown(limit) once
-- locks due messages for destinations that no live relay serves, skipping locked ones; none on a frozen database
WITH RECURSIVE places AS (
    SELECT min(destination) AS destination FROM tenure_message_due
    UNION ALL
    SELECT (SELECT min(m.destination) FROM tenure_message_due m WHERE m.destination > p.destination)
    FROM places p WHERE p.destination IS NOT NULL
)
SELECT m.message_id, m.tenant, m.destination, m.subject, m.position, m.since, m.generation, m.attempt, m.attempts_max, m.epoch, m.error_code, m.error_message FROM places p CROSS JOIN tenure_message_due m ON m.destination = p.destination
WHERE NOT EXISTS (
    SELECT 1 FROM tenure_message_relay r, json_each(r.destinations) d WHERE r.expires_at > :now AND d.value = p.destination
) AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
LIMIT :limit;

-- name: message_known_again(limit) once
-- locks messages that were set aside for an unknown destination which a live relay serves now, skipping locked ones
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message FROM tenure_message_resting r
WHERE r.error_code = 'UNKNOWN_DESTINATION'
    AND r.destination IN (SELECT d.value FROM tenure_message_relay n, json_each(n.destinations) d WHERE n.expires_at > :now)
LIMIT :limit;

-- name: message_prune(older_us, limit) once
-- writes message, message_done, message_decision: forgets what was delivered or discarded longer ago, oldest first
DELETE FROM tenure_message_decision WHERE (message_id, tenant) IN (
    SELECT message_id, tenant FROM tenure_message_done WHERE done_at <= :now - :older_us ORDER BY done_at, position LIMIT :limit
);

DELETE FROM tenure_message WHERE position IN (
    SELECT position FROM tenure_message_done WHERE done_at <= :now - :older_us ORDER BY done_at, position LIMIT :limit
);

DELETE FROM tenure_message_done WHERE position IN (
    SELECT position FROM tenure_message_done WHERE done_at <= :now - :older_us ORDER BY done_at, position LIMIT :limit
) RETURNING position;

-- name: message_resting_lock(position) once
-- locks one message that rests; the clock is read after the lock
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_message_resting WHERE position = :position;

-- name: message_decision_insert(message_id, tenant, decision, at, actor, reason, attempts, command_id) once
-- writes message_decision
INSERT INTO tenure_message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id)
VALUES (:message_id, :tenant, :decision, :at, :actor, :reason, :attempts, :command_id);

-- name: message_decisions(message_id, tenant) once
-- locks nothing; what operators did to a message, oldest first
SELECT decision, at, actor, reason, attempts, command_id FROM tenure_message_decision WHERE message_id = :message_id AND tenant = :tenant ORDER BY at;

-- name: message_read(message_id, tenant) once
-- locks nothing; of every tenant where none is given; the last column is the first of the subject
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message, p.state, p.due_at, p.relay_id, p.expires_at, p.done_at, p.receipt,
    m.operation, m.type, m.version, m.subject, m.ordered, m.data, m.scheduled_at, m.created_at, m.digest,
    (
        SELECT o.message_id FROM tenure_message_order o
        WHERE p.done_at IS NULL AND o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM tenure_message m JOIN tenure_message_place p ON p.position = m.position AND p.tenant = m.tenant
WHERE m.message_id = :message_id AND (:tenant IS NULL OR m.tenant = :tenant);

-- name: message_list(tenant, destination, state, after, limit) once
-- locks nothing; by id, newest last, after the given id
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message, p.state, p.due_at, p.relay_id, p.expires_at, p.done_at, p.receipt,
    m.operation, m.type, m.version, m.subject, m.ordered, m.data, m.scheduled_at, m.created_at, m.digest,
    (
        SELECT o.message_id FROM tenure_message_order o
        WHERE p.done_at IS NULL AND o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM tenure_message m JOIN tenure_message_place p ON p.position = m.position AND p.tenant = m.tenant
WHERE (:tenant IS NULL OR m.tenant = :tenant)
    AND (:destination IS NULL OR m.destination = :destination)
    AND (:state IS NULL OR p.state IN (SELECT value FROM json_each(:state)))
    AND (:after IS NULL OR m.message_id > :after)
ORDER BY m.message_id
LIMIT :limit;

-- name: message_counts(tenant) once
-- locks nothing; for each destination and state how many, the oldest, and the most deliveries; reads every place but done
SELECT p.destination, p.state, p.error_code, count(*), min(p.since), max(p.attempt), :now
FROM tenure_message_place p
WHERE p.place <> 'done' AND (:tenant IS NULL OR p.tenant = :tenant)
GROUP BY p.destination, p.state, p.error_code
ORDER BY p.destination, p.state, p.error_code;

-- name: message_oldest() once
-- locks nothing; the oldest message that is due and not delivered, held ones left aside: looks at one row of each
-- destination and of each place, whatever waits there
WITH RECURSIVE places AS (
    SELECT min(destination) AS destination FROM tenure_message_due
    UNION ALL
    SELECT (SELECT min(m.destination) FROM tenure_message_due m WHERE m.destination > p.destination)
    FROM places p WHERE p.destination IS NOT NULL
)
SELECT o.since, o.state, o.destination, o.attempt, :now FROM (
    SELECT f.since, 'due' AS state, p.destination, f.attempt FROM places p
    JOIN tenure_message_due f ON f.position = (
        SELECT m.position FROM tenure_message_due m WHERE m.destination = p.destination
        ORDER BY m.since, m.position LIMIT 1
    )
    UNION ALL
    SELECT since, 'delivering', destination, attempt FROM tenure_message_lease
    UNION ALL
    SELECT * FROM (
        SELECT since, 'later', destination, attempt FROM tenure_message_later WHERE attempt > 0 ORDER BY since LIMIT 1
    ) tried
    UNION ALL
    SELECT * FROM (
        SELECT since, 'later', destination, attempt FROM tenure_message_later WHERE due_at <= :now ORDER BY due_at LIMIT 1
    ) due
    UNION ALL
    SELECT * FROM (
        SELECT since, state, destination, attempt FROM tenure_message_resting WHERE state <> 'held' ORDER BY since LIMIT 1
    ) resting
) o
ORDER BY o.since LIMIT 1;
