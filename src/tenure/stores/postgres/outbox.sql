-- The PostgreSQL store's statements about messages that leave, in the order of the SQLite twin. How they are written is
-- said at the head of statements.sql.

-- name: message_insert(message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max, scheduled_at, digest) each
-- writes message, and message_due or message_later, and message_order, where operation and id are new; gives what is new.
-- Waits for another transaction that adds the same operation. The tenant's authority row is there already.
WITH clock AS MATERIALIZED (SELECT tenure.now_us() AS now),
made AS (
    INSERT INTO tenure.message (message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max, scheduled_at, created_at, digest)
    SELECT message_id, tenant, destination, operation, type, version, subject, ordered, data::json, attempts_max, COALESCE(scheduled_at, clock.now), clock.now, digest
    FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(operation)b::text[], %(type)b::text[], %(version)b::integer[], %(subject)b::text[], %(ordered)b::boolean[], %(data)b::text[], %(attempts_max)b::integer[], %(scheduled_at)b::bigint[], %(digest)b::text[])
        WITH ORDINALITY AS given (message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max, scheduled_at, digest, nth)
    CROSS JOIN clock
    ORDER BY nth
    ON CONFLICT DO NOTHING
    RETURNING message_id, tenant, destination, CASE WHEN ordered THEN subject END AS line, position, scheduled_at, created_at, attempts_max
),
fresh AS MATERIALIZED (SELECT m.*, a.epoch FROM made m JOIN tenure.authority a ON a.tenant = m.tenant),
due AS (
    INSERT INTO tenure.message_due (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message)
    SELECT message_id, tenant, destination, line, position, scheduled_at, 0, 0, attempts_max, epoch, NULL, NULL
    FROM fresh WHERE scheduled_at <= created_at ORDER BY position
),
later AS (
    INSERT INTO tenure.message_later (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at)
    SELECT message_id, tenant, destination, line, position, scheduled_at, 0, 0, attempts_max, epoch, NULL, NULL, scheduled_at
    FROM fresh WHERE scheduled_at > created_at ORDER BY position
),
line AS (
    INSERT INTO tenure.message_order (tenant, destination, subject, position, message_id)
    SELECT tenant, destination, line, position, message_id FROM fresh WHERE line IS NOT NULL ORDER BY position
)
SELECT tenant, message_id, epoch, created_at FROM fresh;

-- name: message_known(tenant, destination, operation) each
-- locks nothing; the messages that have these operations
SELECT m.tenant, m.destination, m.operation, m.message_id, m.digest, p.epoch, m.created_at
FROM unnest(%(tenant)b::text[], %(destination)b::text[], %(operation)b::text[]) AS given (tenant, destination, operation)
JOIN tenure.message m USING (tenant, destination, operation)
JOIN tenure.message_known p ON p.position = m.position AND p.tenant = m.tenant;

-- name: message_front(destination, limit) once
-- locks the due messages it looks at and then their tenants' authority, shared, skipping what is locked; the claim's
-- choice, oldest first. Whoever takes authority away either waits for the claim, or is seen by it, or is passed over; the
-- messages come first here, so nobody may be waited for. Nothing on a frozen database. The last column is the position
-- of the first of the subject.
WITH picked AS MATERIALIZED (
    SELECT m.* FROM tenure.message_due m
    WHERE m.destination = %(destination)b::text AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
    ORDER BY m.since, m.position
    LIMIT %(limit)b::bigint
    FOR UPDATE OF m SKIP LOCKED
)
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message,
    b.operation, b.type, b.version, b.subject, b.ordered, b.data::text, b.scheduled_at, b.created_at, b.digest,
    a.epoch, a.frozen, EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen'), tenure.now_us(),
    (
        SELECT o.position FROM tenure.message_order o
        WHERE o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM picked p
JOIN tenure.message b ON b.message_id = p.message_id AND b.tenant = p.tenant
JOIN tenure.authority a ON a.tenant = p.tenant
ORDER BY p.since, p.position
FOR SHARE OF a SKIP LOCKED;

-- name: message_claimed(command_id) once
-- locks nothing; what an earlier run of the same claim took and its leases still hold, with the columns of message_front
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message,
    b.operation, b.type, b.version, b.subject, b.ordered, b.data::text, b.scheduled_at, b.created_at, b.digest,
    a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us(), NULL::bigint
FROM tenure.message_lease p
JOIN tenure.message b ON b.message_id = p.message_id AND b.tenant = p.tenant
JOIN tenure.authority a ON a.tenant = p.tenant
WHERE p.command_id = %(command_id)b::uuid AND p.expires_at - tenure.now_us() > 0
ORDER BY p.since, p.position;

-- name: message_order_share(tenant, destination, subject, position) each
-- locks the order rows of messages that others are behind, shared, skipping those whose message is just being finished:
-- what is put behind a locked one is seen by whoever finishes it
SELECT o.tenant, o.destination, o.subject, o.position
FROM unnest(%(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[]) AS given (tenant, destination, subject, position)
JOIN tenure.message_order o USING (tenant, destination, subject, position)
FOR SHARE OF o SKIP LOCKED;

-- name: message_due_delete(position, generation) each
-- writes message_due: the row must still have this generation
DELETE FROM tenure.message_due
WHERE position = ANY(%(position)b::bigint[])
    AND generation = (%(generation)b::bigint[])[array_position(%(position)b::bigint[], position)]
RETURNING position;

-- name: message_later_delete(position, generation) each
-- writes message_later: the row must still have this generation
DELETE FROM tenure.message_later
WHERE position = ANY(%(position)b::bigint[])
    AND generation = (%(generation)b::bigint[])[array_position(%(position)b::bigint[], position)]
RETURNING position;

-- name: message_lease_delete(position, generation) each
-- writes message_lease: the row must still have this generation
DELETE FROM tenure.message_lease
WHERE position = ANY(%(position)b::bigint[])
    AND generation = (%(generation)b::bigint[])[array_position(%(position)b::bigint[], position)]
RETURNING position;

-- name: message_resting_delete(position, generation) each
-- writes message_resting: the row must still have this generation
DELETE FROM tenure.message_resting
WHERE position = ANY(%(position)b::bigint[])
    AND generation = (%(generation)b::bigint[])[array_position(%(position)b::bigint[], position)]
RETURNING position;

-- name: message_due_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes message_due
INSERT INTO tenure.message_due (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[], %(since)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, nth)
ORDER BY nth;

-- name: message_later_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at) each
-- writes message_later
INSERT INTO tenure.message_later (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[], %(since)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[], %(due_at)b::bigint[])
    WITH ORDINALITY AS given (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, due_at, nth)
ORDER BY nth;

-- name: message_lease_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id) each
-- writes message_lease
INSERT INTO tenure.message_lease (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[], %(since)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[], %(relay_id)b::text[], %(expires_at)b::bigint[], %(command_id)b::uuid[])
    WITH ORDINALITY AS given (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, command_id, nth)
ORDER BY nth;

-- name: message_resting_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state) each
-- writes message_resting
INSERT INTO tenure.message_resting (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[], %(since)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[], %(state)b::text[])
    WITH ORDINALITY AS given (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, nth)
ORDER BY nth;

-- name: message_done_insert(message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt) each
-- writes message_done
INSERT INTO tenure.message_done (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt::json
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[], %(since)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[], %(state)b::text[], %(done_at)b::bigint[], %(receipt)b::text[])
    WITH ORDINALITY AS given (message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, done_at, receipt, nth)
ORDER BY nth;

-- name: message_lease_lock(position) each
-- locks the leases named, in order; the fence of every finish
WITH held AS MATERIALIZED (
    SELECT * FROM tenure.message_lease WHERE position = ANY(%(position)b::bigint[]) ORDER BY position FOR UPDATE
)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, relay_id, expires_at, EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen'), tenure.now_us() FROM held;

-- name: message_order_delete(tenant, destination, subject, position) each
-- writes message_order: a message is delivered or discarded; waits for whoever puts another one behind it
DELETE FROM tenure.message_order o
USING unnest(%(tenant)b::text[], %(destination)b::text[], %(subject)b::text[], %(position)b::bigint[]) AS given (tenant, destination, subject, position)
WHERE o.tenant = given.tenant AND o.destination = given.destination AND o.subject = given.subject AND o.position = given.position;

-- name: message_order_next(tenant, destination, subject) each
-- locks the first message of a subject, where it is blocked
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message
FROM (
    SELECT DISTINCT n.position, n.tenant
    FROM unnest(%(tenant)b::text[], %(destination)b::text[], %(subject)b::text[]) AS given (tenant, destination, subject)
    CROSS JOIN LATERAL (
        SELECT o.position, o.tenant FROM tenure.message_order o
        WHERE o.tenant = given.tenant AND o.destination = given.destination AND o.subject = given.subject
        ORDER BY o.position LIMIT 1
    ) n
) n
JOIN tenure.message_resting r ON r.position = n.position AND r.tenant = n.tenant
WHERE r.state = 'blocked'
ORDER BY r.position
FOR UPDATE OF r;

-- name: message_later_due(limit) once
-- locks the planned messages that are due, skipping locked ones
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message FROM tenure.message_later WHERE due_at <= (SELECT tenure.now_us())
ORDER BY due_at, position LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED;

-- name: message_lease_expired(limit) once
-- locks the leases that have ended, skipping locked ones; none on a frozen database
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message FROM tenure.message_lease
WHERE expires_at - (SELECT tenure.now_us()) <= 0 AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
ORDER BY position LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED;

-- name: message_held_free(limit) once
-- locks held messages whose authority admits them again, skipping locked ones; asks each tenant for its own
WITH free AS MATERIALIZED (
    SELECT f.position FROM tenure.authority a
    CROSS JOIN LATERAL (
        SELECT r.position FROM tenure.message_resting r
        WHERE r.state = 'held' AND r.tenant = a.tenant AND r.epoch = a.epoch
        LIMIT %(limit)b::bigint
    ) f
    WHERE NOT a.frozen AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
    LIMIT %(limit)b::bigint
)
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message FROM tenure.message_resting r
WHERE r.position = ANY(ARRAY(SELECT position FROM free)) AND r.state = 'held'
FOR UPDATE OF r SKIP LOCKED;

-- name: message_relay_save(relay_id, destinations, lifetime_us) once
-- writes message_relay
INSERT INTO tenure.message_relay (relay_id, destinations, expires_at)
VALUES (%(relay_id)b::text, %(destinations)b::text[], tenure.now_us() + %(lifetime_us)b::bigint)
ON CONFLICT (relay_id) DO UPDATE SET destinations = excluded.destinations, expires_at = excluded.expires_at;

-- name: message_relay_delete(relay_id) once
-- writes message_relay: forgets a relay, and every one that was not heard of again
DELETE FROM tenure.message_relay WHERE relay_id = %(relay_id)b::text OR expires_at <= tenure.now_us();

-- name: message_unknown(limit) once
-- locks due messages for destinations that no live relay serves, skipping locked ones; none on a frozen database
WITH RECURSIVE places AS (
    (SELECT destination FROM tenure.message_due ORDER BY destination LIMIT 1)
    UNION ALL
    SELECT n.destination FROM places p
    CROSS JOIN LATERAL (
        SELECT m.destination FROM tenure.message_due m WHERE m.destination > p.destination ORDER BY m.destination LIMIT 1
    ) n
),
strange AS MATERIALIZED (
    SELECT f.position FROM places p
    CROSS JOIN LATERAL (
        SELECT m.position FROM tenure.message_due m WHERE m.destination = p.destination
        ORDER BY m.since, m.position LIMIT %(limit)b::bigint
    ) f
    WHERE NOT EXISTS (
        SELECT FROM tenure.message_relay r WHERE r.expires_at > tenure.now_us() AND p.destination = ANY(r.destinations)
    ) AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
    LIMIT %(limit)b::bigint
)
SELECT m.message_id, m.tenant, m.destination, m.subject, m.position, m.since, m.generation, m.attempt, m.attempts_max, m.epoch, m.error_code, m.error_message FROM tenure.message_due m WHERE m.position = ANY(ARRAY(SELECT position FROM strange))
FOR UPDATE OF m SKIP LOCKED;

-- name: message_known_again(limit) once
-- locks messages that were set aside for an unknown destination which a live relay serves now, skipping locked ones
SELECT r.message_id, r.tenant, r.destination, r.subject, r.position, r.since, r.generation, r.attempt, r.attempts_max, r.epoch, r.error_code, r.error_message FROM tenure.message_resting r
WHERE r.error_code = 'UNKNOWN_DESTINATION' AND r.destination = ANY(ARRAY(
    SELECT unnest(n.destinations) FROM tenure.message_relay n WHERE n.expires_at > tenure.now_us()
))
LIMIT %(limit)b::bigint
FOR UPDATE OF r SKIP LOCKED;

-- name: message_prune(older_us, limit) once
-- writes message, message_done, message_decision: forgets what was delivered or discarded longer ago, oldest first
WITH old AS MATERIALIZED (
    SELECT message_id, tenant, position FROM tenure.message_done WHERE done_at <= (SELECT tenure.now_us()) - %(older_us)b::bigint
    ORDER BY done_at LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED
),
decided AS (
    DELETE FROM tenure.message_decision d USING old WHERE d.message_id = old.message_id AND d.tenant = old.tenant
),
body AS (DELETE FROM tenure.message m USING old WHERE m.message_id = old.message_id AND m.tenant = old.tenant)
DELETE FROM tenure.message_done d WHERE d.position = ANY(ARRAY(SELECT position FROM old)) RETURNING d.position;

-- name: message_resting_lock(position) once
-- locks one message that rests; the clock is read after the lock
WITH held AS MATERIALIZED (SELECT * FROM tenure.message_resting WHERE position = %(position)b::bigint FOR UPDATE)
SELECT message_id, tenant, destination, subject, position, since, generation, attempt, attempts_max, epoch, error_code, error_message, state, EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen'), tenure.now_us() FROM held;

-- name: message_decision_insert(message_id, tenant, decision, at, actor, reason, attempts, command_id) once
-- writes message_decision
INSERT INTO tenure.message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id)
VALUES (%(message_id)b::uuid, %(tenant)b::text, %(decision)b::text, %(at)b::bigint, %(actor)b::text, %(reason)b::text, %(attempts)b::integer, %(command_id)b::uuid);

-- name: message_decisions(message_id, tenant) once
-- locks nothing; what operators did to a message, oldest first
SELECT decision, at, actor, reason, attempts, command_id FROM tenure.message_decision WHERE message_id = %(message_id)b::uuid AND tenant = %(tenant)b::text ORDER BY at;

-- name: message_read(message_id, tenant) once
-- locks nothing; of every tenant where none is given; the last column is the first of the subject
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message, p.state, p.due_at, p.relay_id, p.expires_at, p.done_at, p.receipt,
    m.operation, m.type, m.version, m.subject, m.ordered, m.data::text, m.scheduled_at, m.created_at, m.digest,
    (
        SELECT o.message_id FROM tenure.message_order o
        WHERE p.done_at IS NULL AND o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM tenure.message m JOIN tenure.message_place p ON p.position = m.position AND p.tenant = m.tenant
WHERE m.message_id = %(message_id)b::uuid AND (%(tenant)b::text IS NULL OR m.tenant = %(tenant)b);

-- name: message_list(tenant, destination, state, after, limit) once
-- locks nothing; by id, newest last, after the given id
SELECT p.message_id, p.tenant, p.destination, p.subject, p.position, p.since, p.generation, p.attempt, p.attempts_max, p.epoch, p.error_code, p.error_message, p.state, p.due_at, p.relay_id, p.expires_at, p.done_at, p.receipt,
    m.operation, m.type, m.version, m.subject, m.ordered, m.data::text, m.scheduled_at, m.created_at, m.digest,
    (
        SELECT o.message_id FROM tenure.message_order o
        WHERE p.done_at IS NULL AND o.tenant = p.tenant AND o.destination = p.destination AND o.subject = p.subject
        ORDER BY o.position LIMIT 1
    )
FROM tenure.message m JOIN tenure.message_place p ON p.position = m.position AND p.tenant = m.tenant
WHERE (%(tenant)b::text IS NULL OR m.tenant = %(tenant)b)
    AND (%(destination)b::text IS NULL OR m.destination = %(destination)b)
    AND (%(state)b::text[] IS NULL OR p.state = ANY(%(state)b))
    AND (%(after)b::uuid IS NULL OR m.message_id > %(after)b)
ORDER BY m.message_id
LIMIT %(limit)b::bigint;

-- name: message_counts(tenant) once
-- locks nothing; for each destination and state how many, the oldest, and the most deliveries; reads every place but done
SELECT p.destination, p.state, p.error_code, count(*), min(p.since), max(p.attempt), tenure.now_us()
FROM tenure.message_place p
WHERE p.place <> 'done' AND (%(tenant)b::text IS NULL OR p.tenant = %(tenant)b)
GROUP BY p.destination, p.state, p.error_code
ORDER BY p.destination, p.state, p.error_code NULLS FIRST;

-- name: message_oldest() once
-- locks nothing; the oldest message that is due and not delivered, held ones left aside: looks at one row of each
-- destination and of each place, whatever waits there
WITH RECURSIVE places AS (
    (SELECT destination FROM tenure.message_due ORDER BY destination LIMIT 1)
    UNION ALL
    SELECT n.destination FROM places p
    CROSS JOIN LATERAL (
        SELECT m.destination FROM tenure.message_due m WHERE m.destination > p.destination ORDER BY m.destination LIMIT 1
    ) n
)
SELECT o.since, o.state, o.destination, o.attempt, (SELECT tenure.now_us()) FROM (
    SELECT f.since, 'due' AS state, p.destination, f.attempt FROM places p
    CROSS JOIN LATERAL (
        SELECT m.since, m.attempt FROM tenure.message_due m WHERE m.destination = p.destination
        ORDER BY m.since, m.position LIMIT 1
    ) f
    UNION ALL
    SELECT since, 'delivering', destination, attempt FROM tenure.message_lease
    UNION ALL
    SELECT * FROM (
        SELECT since, 'later', destination, attempt FROM tenure.message_later WHERE attempt > 0 ORDER BY since LIMIT 1
    ) tried
    UNION ALL
    SELECT * FROM (
        SELECT since, 'later', destination, attempt FROM tenure.message_later WHERE due_at <= (SELECT tenure.now_us()) ORDER BY due_at LIMIT 1
    ) due
    UNION ALL
    SELECT * FROM (
        SELECT since, state, destination, attempt FROM tenure.message_resting WHERE state <> 'held' ORDER BY since LIMIT 1
    ) resting
) o
ORDER BY o.since LIMIT 1;
