-- Messages that an older epoch holds. A tenant's authority is locked before these.

-- name: message_stale(tenant, epoch, current, limit) once
-- locks nothing; undelivered messages of a tenant under an older epoch than the current one, or under the one given,
-- oldest first; those that are being delivered, or were set aside for a person, left out
SELECT message_id, position, generation, place, epoch, destination FROM (
    SELECT message_id, position, generation, epoch, destination, 'due' AS place FROM tenure.message_due
    WHERE tenant = %(tenant)b::text AND epoch < %(current)b::bigint
    UNION ALL
    SELECT message_id, position, generation, epoch, destination, 'later' FROM tenure.message_later
    WHERE tenant = %(tenant)b::text AND epoch < %(current)b::bigint
    UNION ALL
    SELECT message_id, position, generation, epoch, destination, 'resting' FROM tenure.message_resting
    WHERE tenant = %(tenant)b::text AND epoch < %(current)b::bigint AND (state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
) stale WHERE %(epoch)b::bigint IS NULL OR epoch = %(epoch)b::bigint
ORDER BY position LIMIT %(limit)b::bigint;

-- name: message_stale_count(tenant) once
-- locks nothing; how many undelivered messages of each epoch a tenant has, without those that message_stale leaves out
SELECT epoch, count(*) FROM (
    SELECT epoch FROM tenure.message_due WHERE tenant = %(tenant)b::text
    UNION ALL
    SELECT epoch FROM tenure.message_later WHERE tenant = %(tenant)b::text
    UNION ALL
    SELECT epoch FROM tenure.message_resting WHERE tenant = %(tenant)b::text AND (state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
) waiting GROUP BY epoch ORDER BY epoch;

-- name: message_due_stamp(position, generation, epoch) each
-- writes message_due: the row must still have this generation
UPDATE tenure.message_due m SET epoch = given.epoch
FROM unnest(%(position)b::bigint[], %(generation)b::bigint[], %(epoch)b::bigint[]) AS given (position, generation, epoch)
WHERE m.position = given.position AND m.generation = given.generation
RETURNING m.message_id;

-- name: message_later_stamp(position, generation, epoch) each
-- writes message_later: the row must still have this generation
UPDATE tenure.message_later m SET epoch = given.epoch
FROM unnest(%(position)b::bigint[], %(generation)b::bigint[], %(epoch)b::bigint[]) AS given (position, generation, epoch)
WHERE m.position = given.position AND m.generation = given.generation
RETURNING m.message_id;

-- name: message_resting_stamp(position, generation, epoch) each
-- writes message_resting: the row must still have this generation, and wait for no person
UPDATE tenure.message_resting m SET epoch = given.epoch
FROM unnest(%(position)b::bigint[], %(generation)b::bigint[], %(epoch)b::bigint[]) AS given (position, generation, epoch)
WHERE m.position = given.position AND m.generation = given.generation AND (m.state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
RETURNING m.message_id;

-- name: message_readmission_insert(message_id, tenant, at, actor, reason, command_id) each
-- writes message_decision
INSERT INTO tenure.message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id)
SELECT message_id, tenant, 'readmitted', at, actor, reason, 0, command_id
FROM unnest(%(message_id)b::uuid[], %(tenant)b::text[], %(at)b::bigint[], %(actor)b::text[], %(reason)b::text[], %(command_id)b::uuid[])
    AS given (message_id, tenant, at, actor, reason, command_id);

-- name: message_readmitted(tenant, command_id) once
-- locks nothing; what one act has readmitted
SELECT message_id FROM tenure.message_decision
WHERE tenant = %(tenant)b::text AND command_id = %(command_id)b::uuid ORDER BY message_id;
