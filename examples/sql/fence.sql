-- A fence in a database without idgen. It refuses the writes of a holder whose lease, in another database, has gone to
-- the next holder. Run it with psql, as the owner of the database, and let the role of the application, here app, call
-- the function. It needs PostgreSQL 13 or later, and no extension but PL/pgSQL:
--
--     psql -v ON_ERROR_STOP=1 -f fence.sql shop
--     psql -c 'GRANT EXECUTE ON FUNCTION fence.pass TO app' shop
--
-- A writer begins each transaction with SELECT fence.pass('importer', <token>), in a statement of its own, with the
-- token that lease_acquire has returned in the database with idgen. It reads and writes after that.
--
-- Guaranteed: once a transaction with a token has committed, none with a lower one commits, and two transactions under
-- one name never run beside each other. Not guaranteed: that a holder stops when it has lost its lease. It can write
-- until the next holder has passed.

CREATE SCHEMA fence;
GRANT USAGE ON SCHEMA fence TO PUBLIC;

-- The highest token that was seen of each lease. Keep the rows: without its row, a name accepts any token.
CREATE TABLE fence.highest (
    name  text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
);

-- Fails if a higher token was seen. Otherwise the row is locked until the transaction ends. It is written even if the
-- token is the same: a transaction with an older snapshot then fails (40001), and cannot overwrite what it did not see.
CREATE FUNCTION fence.pass(name text, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    writer xid;
    seen   bigint;
BEGIN
    IF pass.name IS NULL OR pass.token IS NULL THEN
        RAISE EXCEPTION 'name and token must not be null' USING ERRCODE = '22004';
    ELSIF octet_length(pass.name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'name must have 1 to 255 bytes' USING ERRCODE = '22023';
    ELSIF pass.token < 1 THEN
        RAISE EXCEPTION 'token must be positive: "%"', pass.token USING ERRCODE = '22023';
    END IF;
    -- Locks the row also where the condition is false.
    INSERT INTO fence.highest AS known (name, token) VALUES (pass.name, pass.token)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE known.token <= excluded.token
    RETURNING xmin INTO writer;
    IF NOT FOUND THEN
        SELECT token INTO seen FROM fence.highest AS known WHERE known.name = pass.name;
        RAISE EXCEPTION 'token % of "%" is stale', pass.token, pass.name USING ERRCODE = '55000',
            DETAIL = format('Token %s was seen.', seen),
            HINT = 'Stop the work that the lease protects. To continue, acquire the lease again.';
    ELSIF writer <> pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'cannot pass the fence in a subtransaction' USING ERRCODE = '25001',
            DETAIL = 'ROLLBACK TO SAVEPOINT, or an exception handler, would release the fence.',
            HINT = 'Call fence.pass() first in the transaction, before SAVEPOINT.';
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION fence.pass FROM PUBLIC;
