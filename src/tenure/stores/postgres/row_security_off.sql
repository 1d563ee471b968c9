-- Ends row security by tenant; roles.sql, which is run after it, gives back what was taken from the roles. May be run any
-- number of times.

DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.relname, c.relkind FROM pg_class c
        WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            AND (c.relname = 'claim' OR EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped))
        ORDER BY c.relname
    LOOP
        IF one.relkind = 'v' THEN
            EXECUTE format('ALTER VIEW tenure.%I RESET (security_invoker)', one.relname);
            CONTINUE;
        END IF;
        EXECUTE format('DROP POLICY IF EXISTS one_tenant ON tenure.%I', one.relname);
        EXECUTE format('DROP POLICY IF EXISTS every_tenant ON tenure.%I', one.relname);
        EXECUTE format('ALTER TABLE tenure.%I NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY', one.relname);
    END LOOP;
END $$;
