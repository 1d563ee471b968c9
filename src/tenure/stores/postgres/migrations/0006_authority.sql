-- What people and recoveries did to a tenant's authority: append-only, never read by a decision.
CREATE TABLE tenure.authority_event (
    act_id uuid NOT NULL PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> ''),
    what text NOT NULL CHECK (what IN ('rotated', 'frozen', 'thawed', 'readmitted', 'recovered')),
    epoch bigint NOT NULL CHECK (epoch >= 1),
    actor text NOT NULL CHECK (actor <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    at bigint NOT NULL
);
CREATE INDEX authority_event_tenant ON tenure.authority_event (tenant, at);
