-- A participant in transactions over several services, by try, confirm and cancel (TCC). Run it with psql in a database
-- with idgen:
--
--     psql -v ON_ERROR_STOP=1 -f tcc.sql shop
--
-- Here the participant takes money from accounts. The coordinator draws the id of a transaction with snowflake_next(),
-- and sends it with each call. A call can arrive twice, late, or not at all. Call the functions in READ COMMITTED, each
-- in a transaction of its own.

CREATE TABLE account (
    id      bigint PRIMARY KEY DEFAULT snowflake_next(),
    balance numeric NOT NULL CHECK (balance >= 0)
);
CREATE TABLE tcc_step (
    transaction_id bigint,
    step           text,                     -- a transaction can call a participant for several steps
    state          text NOT NULL CHECK (state IN ('tried', 'confirmed', 'cancelled')),
    account_id     bigint REFERENCES account,
    amount         numeric,
    PRIMARY KEY (transaction_id, step)
);

-- Takes the amount, until confirm or cancel. A repeated try does nothing. A try after cancel fails.
CREATE FUNCTION tcc_try(tx bigint, part text, payer bigint, price numeric) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    found_state text;
BEGIN
    -- The row of a transaction as old as this may have been deleted.
    IF tx < snowflake_floor(now() - interval '30 days', 'snowflake') THEN
        RAISE EXCEPTION 'transaction % is too old', tx USING ERRCODE = '55000';
    END IF;
    -- Waits for a call for this step that is still running.
    INSERT INTO tcc_step VALUES (tx, part, 'tried', payer, price) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT state INTO found_state FROM tcc_step WHERE transaction_id = tx AND step = part;
        IF found_state = 'cancelled' THEN
            RAISE EXCEPTION 'transaction % is cancelled', tx USING ERRCODE = '55000';
        END IF;
        RETURN;
    END IF;
    UPDATE account SET balance = balance - price WHERE id = payer;
END $$;

-- Keeps what the try took. A repeated confirm does nothing.
CREATE FUNCTION tcc_confirm(tx bigint, part text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tcc_step SET state = 'confirmed' WHERE transaction_id = tx AND step = part AND state <> 'cancelled';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'transaction % is cancelled or was not tried', tx USING ERRCODE = '55000';
    END IF;
END $$;

-- Gives back what the try took. Without a try, it leaves a row that refuses a late one. A repeated cancel does nothing.
CREATE FUNCTION tcc_cancel(tx bigint, part text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tried tcc_step;
BEGIN
    INSERT INTO tcc_step VALUES (tx, part, 'cancelled') ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN;
    END IF;
    -- Of several cancels, one finds the state 'tried'.
    UPDATE tcc_step SET state = 'cancelled' WHERE transaction_id = tx AND step = part AND state = 'tried'
    RETURNING * INTO tried;
    IF FOUND THEN
        UPDATE account SET balance = balance + tried.amount WHERE id = tried.account_id;
    ELSIF EXISTS (SELECT FROM tcc_step WHERE transaction_id = tx AND step = part AND state = 'confirmed') THEN
        RAISE EXCEPTION 'transaction % is confirmed', tx USING ERRCODE = '55000';
    END IF;
END $$;
