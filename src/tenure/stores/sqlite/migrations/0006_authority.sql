-- What people and recoveries did to a tenant's authority: append-only, never read by a decision.
CREATE TABLE tenure_authority_event (
    act_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    what TEXT NOT NULL CHECK (what IN ('rotated', 'frozen', 'thawed', 'readmitted', 'recovered')),
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    actor TEXT NOT NULL CHECK (actor <> ''),
    reason TEXT NOT NULL CHECK (reason <> ''),
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tenure_authority_event_tenant ON tenure_authority_event (tenant, at);
