-- A participant in transactions over several services, by try, confirm and cancel (TCC). Run it with psql in a database
-- with idgen, and let the role of the application, here app, call it:
--
--     psql -v ON_ERROR_STOP=1 -f tcc.sql shop
--     psql -c 'GRANT SELECT, INSERT, UPDATE ON tcc_step TO app; GRANT SELECT ON tcc_forgotten TO app;
--              GRANT SELECT, UPDATE ON account TO app' shop
--
-- Here the participant takes money from accounts. The coordinator draws the id of a transaction with
-- snowflake_next('snowflake'), whatever layout each server has, and sends it with each call. A call can arrive twice,
-- late, or not at all. Send each in a transaction of its own, limit the wait for the answer, and send it again if there
-- is none.
--
-- Guaranteed: each step takes its amount at most once, and gives it back at most once, and not after it was confirmed,
-- whatever is killed and whatever a clock does. Not guaranteed: an end. If the coordinator forgets a step, it stays
-- tried.

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
    PRIMARY KEY (transaction_id, step),
    CONSTRAINT amount_is_positive CHECK (amount > 0 AND amount < 'Infinity'),
    CONSTRAINT try_has_payer_and_amount CHECK (state = 'cancelled' OR num_nulls(account_id, amount) = 0)
);
-- Transactions with lower ids may have been deleted. At most one row, whose bound only rises.
CREATE TABLE tcc_forgotten (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    below bigint NOT NULL
);

-- Fails for a transaction that may have been deleted. Call it after the statement that has found no row: a deletion
-- before that has committed its bound.
CREATE FUNCTION tcc_require_known(tx bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'call this in READ COMMITTED' USING ERRCODE = '25001';
    ELSIF EXISTS (SELECT FROM tcc_forgotten WHERE below > tx) THEN
        RAISE EXCEPTION 'transaction % is too old', tx USING ERRCODE = '55000';
    END IF;
END $$;

-- Takes the amount, until confirm or cancel. A repeated try does nothing. A try after cancel fails.
CREATE FUNCTION tcc_try(tx bigint, part text, payer bigint, price numeric) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    found_step tcc_step;
BEGIN
    -- Waits for a call for this step that is still running.
    INSERT INTO tcc_step VALUES (tx, part, 'tried', payer, price) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM tcc_require_known(tx);
        UPDATE account SET balance = balance - price WHERE id = payer;
        RETURN;
    END IF;
    SELECT * INTO found_step FROM tcc_step WHERE transaction_id = tx AND step = part;
    IF NOT FOUND OR found_step.state = 'cancelled' THEN
        PERFORM tcc_require_known(tx);
        RAISE EXCEPTION 'transaction % is cancelled', tx USING ERRCODE = '55000';
    ELSIF (found_step.account_id, found_step.amount) IS DISTINCT FROM (payer, price) THEN
        RAISE EXCEPTION 'transaction % was tried with another payer or amount', tx USING ERRCODE = '22023';
    END IF;
END $$;

-- Keeps what the try took. A repeated confirm does nothing.
CREATE FUNCTION tcc_confirm(tx bigint, part text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tcc_step SET state = 'confirmed' WHERE transaction_id = tx AND step = part AND state <> 'cancelled';
    IF NOT FOUND THEN
        PERFORM tcc_require_known(tx);
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
        PERFORM tcc_require_known(tx);
        RETURN;
    END IF;
    -- Of several cancels, one finds the state 'tried'.
    UPDATE tcc_step SET state = 'cancelled' WHERE transaction_id = tx AND step = part AND state = 'tried'
    RETURNING * INTO tried;
    IF FOUND THEN
        UPDATE account SET balance = balance + tried.amount WHERE id = tried.account_id;
    ELSIF NOT EXISTS (SELECT FROM tcc_step WHERE transaction_id = tx AND step = part AND state = 'cancelled') THEN
        PERFORM tcc_require_known(tx);
        RAISE EXCEPTION 'transaction % is confirmed', tx USING ERRCODE = '55000';
    END IF;
END $$;

-- Deletes old steps that have ended. Their transactions are too old from then on, even if the clock was wrong.
CREATE FUNCTION tcc_forget(older_than interval) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO tcc_forgotten AS known (below) VALUES (snowflake_floor(now() - older_than, 'snowflake'))
    ON CONFLICT (one) DO UPDATE SET below = greatest(known.below, excluded.below);
    DELETE FROM tcc_step USING tcc_forgotten WHERE state <> 'tried' AND transaction_id < below;
$$;
