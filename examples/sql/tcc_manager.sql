-- Transactions over several services, which tcc_manager.py drives to their end by try, confirm and cancel (TCC). Run it
-- with psql after due_tasks.sql, in the same database:
--
--     psql -v ON_ERROR_STOP=1 -f due_tasks.sql -f tcc_manager.sql shop
--     psql -c 'GRANT SELECT, INSERT, UPDATE ON due_task, tcc_transaction TO app' shop
--
-- An application begins a transaction, and the manager calls the participants, which are those of tcc.sql:
--
--     SELECT tcc_begin('[{"participant": "bank", "step": "pay",  "account": 7, "amount": 30},
--                        {"participant": "shop", "step": "hold", "account": 1, "amount": 2}]');
--
-- Guaranteed: all steps of a transaction are confirmed, or all are cancelled, once their participants answer.

CREATE TABLE tcc_transaction (
    id       bigint PRIMARY KEY DEFAULT snowflake_next('snowflake'),
    steps    jsonb NOT NULL,
    deadline timestamptz NOT NULL,               -- of the tries
    state    text NOT NULL DEFAULT 'trying'
             CHECK (state IN ('trying', 'confirming', 'cancelling', 'confirmed', 'cancelled')),
    reason   text                                -- of the decision to cancel
);
CREATE INDEX tcc_transaction_unfinished ON tcc_transaction (id) WHERE state NOT IN ('confirmed', 'cancelled');

-- Those that have not ended, with the last error of their task.
CREATE VIEW tcc_unfinished AS
SELECT id, tcc_transaction.state, deadline, attempts, due AS next_attempt, error
FROM tcc_transaction JOIN due_task USING (id)
WHERE tcc_transaction.state NOT IN ('confirmed', 'cancelled');

-- Begins a transaction, and its task, which has the same id. A repeated call with the same id does nothing.
CREATE FUNCTION tcc_begin(
    steps jsonb, patience interval DEFAULT '1 min', id bigint DEFAULT snowflake_next('snowflake'))
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    -- A participant would take two calls of one name for one.
    IF (SELECT count(*) > count(DISTINCT (step -> 'participant', step -> 'step'))
        FROM jsonb_array_elements(steps) AS step) THEN
        RAISE 'two steps of a participant have one name' USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO tcc_transaction VALUES (id, steps, clock_timestamp() + patience) ON CONFLICT DO NOTHING;
    INSERT INTO due_task (id, body, max_attempts) VALUES (id, '{}', NULL) ON CONFLICT DO NOTHING;
    RETURN id;
END $$;

-- Decides a transaction, unless it has been decided. Returns its state. An application can ask for 'cancelling', too.
CREATE FUNCTION tcc_decide(tx bigint, decision text, why text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    decided text;
BEGIN
    -- Waits for another decision that has not committed.
    UPDATE tcc_transaction SET state = decision, reason = why
    WHERE id = tx AND state = 'trying' AND decision IN ('confirming', 'cancelling');
    SELECT state INTO STRICT decided FROM tcc_transaction WHERE id = tx;
    RETURN decided;
END $$;
