-- What people decided about actions: the approvals that governance envelopes name. Rows are never deleted: who granted and
-- who revoked, when and why, is the record of it.
CREATE TABLE tenure.approval (
    tenant text NOT NULL CHECK (tenant <> ''),
    reference text NOT NULL CHECK (reference <> ''),
    action_digest text NOT NULL CHECK (action_digest LIKE 'v1:%'),
    capability text,
    policy text,
    budget text,
    granted_by text NOT NULL CHECK (granted_by <> ''),
    grant_reason text NOT NULL CHECK (grant_reason <> ''),
    granted_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    revoked_at bigint,
    revoked_by text CHECK (revoked_by <> ''),
    revoke_reason text CHECK (revoke_reason <> ''),
    consumed_by uuid,
    consumed_at bigint,
    command_id uuid,
    PRIMARY KEY (tenant, reference),
    CHECK (expires_at > granted_at),
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL) AND (revoked_at IS NULL) = (revoke_reason IS NULL)),
    CHECK ((consumed_at IS NULL) = (consumed_by IS NULL)),
    CHECK (consumed_at IS NULL OR consumed_at < expires_at)
);
