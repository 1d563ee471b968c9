-- Row security by tenant. Installed by `tenure migrate --row-security` after roles.sql, and again by every later migration,
-- so that new tables are covered too; may be run any number of times. Ended by row_security_off.sql.
--
-- A transaction sees and writes the rows of the tenant in its setting `tenure.tenant`, whoever it is. Without one a
-- producer, a viewer and any role of somebody's own see and write nothing; workers, operators, repairers and the owner, who
-- serve all tenants, see all. Superusers and roles with BYPASSRLS are asked by no policy.
--
-- What a policy asks ends in IS NOT NULL, which the planner takes for true of nearly every row. A plain comparison it takes
-- for true of hardly any: it would then not walk an index up to the limit of a claim, but read and sort all that waits
-- (40,000 jobs of 50 tenants: 560 ms for a claim instead of 13). So a policy is a filter, and plans are those without it.
-- The setting is read in a SELECT, once for a statement and not for every row.

DO $$
DECLARE
    one record;
    named text;
BEGIN
    FOR one IN
        SELECT c.relname, c.relkind, quote_ident(pg_get_userbyid(c.relowner)) AS owner FROM pg_class c
        WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            -- A claim's scope is the list of what it was made with; the first is the tenant.
            AND (c.relname = 'claim' OR EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
        ORDER BY c.relname
    LOOP
        IF one.relkind = 'v' THEN
            -- Else it would be read as its owner, whom policies may not bind at all.
            EXECUTE format('ALTER VIEW tenure.%I SET (security_invoker = true)', one.relname);
            CONTINUE;
        END IF;
        named := CASE one.relname WHEN 'claim' THEN '(scope::json ->> 0)' ELSE 'tenant' END
            || ' = (SELECT nullif(current_setting(''tenure.tenant'', true), ''''))';
        EXECUTE format('ALTER TABLE tenure.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', one.relname);
        EXECUTE format('DROP POLICY IF EXISTS one_tenant ON tenure.%I', one.relname);
        EXECUTE format('DROP POLICY IF EXISTS every_tenant ON tenure.%I', one.relname);
        EXECUTE format('CREATE POLICY one_tenant ON tenure.%I USING (nullif(%s, false) IS NOT NULL)', one.relname, named);
        EXECUTE format('CREATE POLICY every_tenant ON tenure.%I TO tenure_worker, tenure_operator, tenure_repairer, %s '
            'USING (nullif((SELECT coalesce(current_setting(''tenure.tenant'', true), '''') = ''''), false) IS NOT NULL)',
            one.relname, one.owner);
    END LOOP;
END $$;

-- A queue is nobody's, but whose turn it was on a fair one is a tenant's name.
DO $$
DECLARE
    columns text := (
        SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = 'tenure.queue'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'turn'
    );
BEGIN
    REVOKE SELECT ON tenure.queue FROM tenure_viewer, tenure_producer;
    EXECUTE 'GRANT SELECT (' || columns || ') ON tenure.queue TO tenure_viewer, tenure_producer';
END $$;
