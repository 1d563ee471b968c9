-- For tests only: the transaction's own setting is the time where it is set. Installed by migrate(test_clock=True).
CREATE OR REPLACE FUNCTION tenure.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    -- The setting is an empty text after the transaction that made it.
    SELECT coalesce(
        nullif(current_setting('tenure.now_us', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
$$;

INSERT INTO tenure.meta (key, value) VALUES ('test_clock', 'installed') ON CONFLICT (key) DO NOTHING;
