-- Messages that an older epoch holds, in the order of the PostgreSQL twin. A tenant's authority is locked before these.

-- name: message_stale(tenant, epoch, current, limit) once
-- locks nothing; undelivered messages of a tenant under an older epoch than the current one, or under the one given,
-- oldest first; those that are being delivered, or were set aside for a person, left out
SELECT message_id, position, generation, place, epoch, destination FROM (
    SELECT message_id, position, generation, epoch, destination, 'due' AS place FROM tenure_message_due
    WHERE tenant = :tenant AND epoch < :current
    UNION ALL
    SELECT message_id, position, generation, epoch, destination, 'later' FROM tenure_message_later
    WHERE tenant = :tenant AND epoch < :current
    UNION ALL
    SELECT message_id, position, generation, epoch, destination, 'resting' FROM tenure_message_resting
    WHERE tenant = :tenant AND epoch < :current AND (state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
) WHERE :epoch IS NULL OR epoch = :epoch
ORDER BY position LIMIT :limit;

-- name: message_stale_count(tenant) once
-- locks nothing; how many undelivered messages of each epoch a tenant has, without those that message_stale leaves out
SELECT epoch, count(*) FROM (
    SELECT epoch FROM tenure_message_due WHERE tenant = :tenant
    UNION ALL
    SELECT epoch FROM tenure_message_later WHERE tenant = :tenant
    UNION ALL
    SELECT epoch FROM tenure_message_resting WHERE tenant = :tenant AND (state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
) GROUP BY epoch ORDER BY epoch;

-- name: message_due_stamp(position, generation, epoch) each
-- writes message_due: the row must still have this generation
UPDATE tenure_message_due SET epoch = :epoch WHERE position = :position AND generation = :generation
RETURNING message_id;

-- name: message_later_stamp(position, generation, epoch) each
-- writes message_later: the row must still have this generation
UPDATE tenure_message_later SET epoch = :epoch WHERE position = :position AND generation = :generation
RETURNING message_id;

-- name: message_resting_stamp(position, generation, epoch) each
-- writes message_resting: the row must still have this generation, and wait for no person
UPDATE tenure_message_resting SET epoch = :epoch
WHERE position = :position AND generation = :generation AND (state IN ('held', 'blocked') OR error_code = 'UNKNOWN_DESTINATION')
RETURNING message_id;

-- name: message_readmission_insert(message_id, tenant, at, actor, reason, command_id) each
-- writes message_decision
INSERT INTO tenure_message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id)
VALUES (:message_id, :tenant, 'readmitted', :at, :actor, :reason, 0, :command_id);

-- name: message_readmitted(tenant, command_id) once
-- locks nothing; what one act has readmitted
SELECT message_id FROM tenure_message_decision WHERE tenant = :tenant AND command_id = :command_id ORDER BY message_id;
