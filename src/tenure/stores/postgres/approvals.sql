-- What people decided about actions; see procedures/approvals.py. An approval is locked after everything else of its job.

-- name: approval_insert(tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id) each
-- writes approval where the reference is new; waits for another transaction that writes the same one
INSERT INTO tenure.approval (tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id)
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id
FROM unnest(%(tenant)b::text[], %(reference)b::text[], %(action_digest)b::text[], %(capability)b::text[], %(policy)b::text[], %(budget)b::text[], %(granted_by)b::text[], %(grant_reason)b::text[], %(granted_at)b::bigint[], %(expires_at)b::bigint[], %(command_id)b::uuid[])
    AS given (tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id)
ORDER BY tenant, reference
ON CONFLICT DO NOTHING;

-- name: approval_lock(tenant, reference) each
-- locks the approvals, in order; with the clock, read after that
WITH locked AS MATERIALIZED (
    SELECT a.* FROM tenure.approval a
    JOIN (SELECT DISTINCT tenant, reference FROM unnest(%(tenant)b::text[], %(reference)b::text[]) AS given (tenant, reference)) g
        ON g.tenant = a.tenant AND g.reference = a.reference
    ORDER BY a.tenant, a.reference
    FOR UPDATE OF a
)
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, tenure.now_us()
FROM locked;

-- name: approval_read(tenant, reference) each
-- locks nothing; with the clock
SELECT a.tenant, a.reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, tenure.now_us()
FROM unnest(%(tenant)b::text[], %(reference)b::text[]) AS given (tenant, reference)
JOIN tenure.approval a ON a.tenant = given.tenant AND a.reference = given.reference;

-- name: approval_list(tenant, action_digest, after, limit) once
-- locks nothing; by reference, after the given one, with the clock
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, tenure.now_us()
FROM tenure.approval
WHERE tenant = %(tenant)b AND (%(action_digest)b::text IS NULL OR action_digest = %(action_digest)b) AND (%(after)b::text IS NULL OR reference > %(after)b)
ORDER BY reference
LIMIT %(limit)b;

-- name: approval_consume(tenant, reference, job_id, consumed_at) each
-- writes approval: taken by this job, where it still stands and nobody has it
UPDATE tenure.approval a SET consumed_by = given.job_id, consumed_at = given.consumed_at
FROM unnest(%(tenant)b::text[], %(reference)b::text[], %(job_id)b::uuid[], %(consumed_at)b::bigint[]) AS given (tenant, reference, job_id, consumed_at)
WHERE a.tenant = given.tenant AND a.reference = given.reference AND a.consumed_by IS NULL AND a.revoked_at IS NULL AND a.expires_at > given.consumed_at
RETURNING a.reference;

-- name: approval_revoke(tenant, reference, revoked_at, revoked_by, revoke_reason) each
-- writes approval: revoked, where it was not; nothing takes that back
UPDATE tenure.approval a SET revoked_at = given.revoked_at, revoked_by = given.revoked_by, revoke_reason = given.revoke_reason
FROM unnest(%(tenant)b::text[], %(reference)b::text[], %(revoked_at)b::bigint[], %(revoked_by)b::text[], %(revoke_reason)b::text[]) AS given (tenant, reference, revoked_at, revoked_by, revoke_reason)
WHERE a.tenant = given.tenant AND a.reference = given.reference AND a.revoked_at IS NULL
RETURNING a.reference;

-- name: approval_revoked(after_tenant, after_reference, limit) once
-- locks nothing; revocations by tenant and reference, after the given one, with the clock
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, tenure.now_us()
FROM tenure.approval
WHERE revoked_at IS NOT NULL AND (%(after_tenant)b::text IS NULL OR (tenant, reference) > (%(after_tenant)b, %(after_reference)b::text))
ORDER BY tenant, reference
LIMIT %(limit)b;

-- name: approval_replay(tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id) each
-- writes approval: a revocation that this database does not know, also of an approval that it does not know
INSERT INTO tenure.approval AS a (tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id)
SELECT tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id
FROM unnest(%(tenant)b::text[], %(reference)b::text[], %(action_digest)b::text[], %(granted_by)b::text[], %(grant_reason)b::text[], %(granted_at)b::bigint[], %(expires_at)b::bigint[], %(revoked_at)b::bigint[], %(revoked_by)b::text[], %(revoke_reason)b::text[], %(command_id)b::uuid[])
    AS given (tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id)
ORDER BY tenant, reference
ON CONFLICT (tenant, reference) DO UPDATE SET
    revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by, revoke_reason = excluded.revoke_reason
WHERE a.revoked_at IS NULL
RETURNING a.reference;
