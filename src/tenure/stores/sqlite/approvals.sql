-- What people decided about actions; see procedures/approvals.py. An approval is locked after everything else of its job.

-- name: approval_insert(tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id) each
-- writes approval where the reference is new; waits for another transaction that writes the same one
INSERT INTO tenure_approval (tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, command_id)
VALUES (:tenant, :reference, :action_digest, :capability, :policy, :budget, :granted_by, :grant_reason, :granted_at, :expires_at, :command_id)
ON CONFLICT DO NOTHING;

-- name: approval_lock(tenant, reference) each
-- locks the approvals, in order; with the clock, read after that
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, :now
FROM tenure_approval WHERE tenant = :tenant AND reference = :reference;

-- name: approval_read(tenant, reference) each
-- locks nothing; with the clock
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, :now
FROM tenure_approval WHERE tenant = :tenant AND reference = :reference;

-- name: approval_list(tenant, action_digest, after, limit) once
-- locks nothing; by reference, after the given one, with the clock
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, :now
FROM tenure_approval
WHERE tenant = :tenant AND (:action_digest IS NULL OR action_digest = :action_digest) AND (:after IS NULL OR reference > :after)
ORDER BY reference
LIMIT :limit;

-- name: approval_consume(tenant, reference, job_id, consumed_at) each
-- writes approval: taken by this job, where it still stands and nobody has it
UPDATE tenure_approval SET consumed_by = :job_id, consumed_at = :consumed_at
WHERE tenant = :tenant AND reference = :reference AND consumed_by IS NULL AND revoked_at IS NULL AND expires_at > :consumed_at
RETURNING reference;

-- name: approval_revoke(tenant, reference, revoked_at, revoked_by, revoke_reason) each
-- writes approval: revoked, where it was not; nothing takes that back
UPDATE tenure_approval SET revoked_at = :revoked_at, revoked_by = :revoked_by, revoke_reason = :revoke_reason
WHERE tenant = :tenant AND reference = :reference AND revoked_at IS NULL
RETURNING reference;

-- name: approval_revoked(after_tenant, after_reference, limit) once
-- locks nothing; revocations by tenant and reference, after the given one, with the clock
SELECT tenant, reference, action_digest, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at, command_id, :now
FROM tenure_approval
WHERE revoked_at IS NOT NULL AND (:after_tenant IS NULL OR (tenant, reference) > (:after_tenant, :after_reference))
ORDER BY tenant, reference
LIMIT :limit;

-- name: approval_replay(tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id) each
-- writes approval: a revocation that this database does not know, also of an approval that it does not know
INSERT INTO tenure_approval (tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at, revoked_at, revoked_by, revoke_reason, command_id)
VALUES (:tenant, :reference, :action_digest, :granted_by, :grant_reason, :granted_at, :expires_at, :revoked_at, :revoked_by, :revoke_reason, :command_id)
ON CONFLICT (tenant, reference) DO UPDATE SET
    revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by, revoke_reason = excluded.revoke_reason
WHERE tenure_approval.revoked_at IS NULL
RETURNING reference;
