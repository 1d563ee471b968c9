-- What people decided about actions: the approvals that governance envelopes name. Rows are never deleted: who granted and
-- who revoked, when and why, is the record of it.
CREATE TABLE tenure_approval (
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    reference TEXT NOT NULL CHECK (reference <> ''),
    action_digest TEXT NOT NULL CHECK (action_digest LIKE 'v1:%'),
    capability TEXT,
    policy TEXT,
    budget TEXT,
    granted_by TEXT NOT NULL CHECK (granted_by <> ''),
    grant_reason TEXT NOT NULL CHECK (grant_reason <> ''),
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER,
    revoked_by TEXT CHECK (revoked_by <> ''),
    revoke_reason TEXT CHECK (revoke_reason <> ''),
    consumed_by TEXT,
    consumed_at INTEGER,
    command_id TEXT,
    PRIMARY KEY (tenant, reference),
    CHECK (expires_at > granted_at),
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL) AND (revoked_at IS NULL) = (revoke_reason IS NULL)),
    CHECK ((consumed_at IS NULL) = (consumed_by IS NULL)),
    CHECK (consumed_at IS NULL OR consumed_at < expires_at)
) WITHOUT ROWID;
