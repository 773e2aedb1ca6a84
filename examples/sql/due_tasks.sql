-- Tasks with a due time, which due_tasks.py runs. Run it with psql in a database with idgen, as a superuser:
--
--     psql -v ON_ERROR_STOP=1 -f due_tasks.sql shop
--     psql -c 'GRANT SELECT, INSERT, UPDATE ON due_task TO app' shop
--
-- An application inserts tasks, in the transaction that needs them:
--
--     INSERT INTO due_task (body, due) VALUES ('{"remind": "customer 7"}', now() + interval '1 day');
--
-- Guaranteed: what a task does in this database commits exactly once, together with the state of its row. Not
-- guaranteed: that a task starts only once. An attempt that was cut off is repeated, so send the id of the task along
-- with what it does elsewhere. All times are those of the server's wall clock.

-- The slots of this lease are the shards. A shard has one worker at a time.
SELECT lease_define('due_tasks', slots => 16, ttl => '30 s');

-- The shard of a key. Tasks with the same key run one at a time.
CREATE FUNCTION due_task_shard(key text) RETURNS int
IMMUTABLE LANGUAGE sql AS $$ SELECT abs(hashtext(key) % 16) $$;

CREATE TABLE due_task (
    id           bigint PRIMARY KEY DEFAULT snowflake_next('snowflake'),
    shard        int NOT NULL DEFAULT due_task_shard(random()::text) CHECK (shard BETWEEN 0 AND 15),
    body         jsonb NOT NULL,
    due          timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(due)),
    max_attempts int DEFAULT 10,                 -- NULL: without a limit
    attempts     int NOT NULL DEFAULT 0,         -- those that have begun
    started      timestamptz,                    -- of an attempt that has not ended
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'failed')),
    error        text,                           -- of the last attempt
    CONSTRAINT started_waits CHECK (started IS NULL OR state = 'waiting')
) WITH (fillfactor = 70);                        -- room for new versions of rows beside the old ones
CREATE INDEX due_task_next ON due_task (shard, due, id) WHERE state = 'waiting';
CREATE INDEX due_task_failures ON due_task (id) WHERE state = 'failed';

-- Tasks that have failed as often as they may.
CREATE VIEW due_task_failed AS
SELECT id, shard, body, attempts, due AS failed_at, error FROM due_task WHERE state = 'failed';

-- Workers listen to the channels of their shards. They look once a second too, so that tasks for later notify nobody.
CREATE FUNCTION due_task_notify() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('due_task_' || shard, '')
    FROM (SELECT DISTINCT shard FROM inserted WHERE due < clock_timestamp() + interval '1 s') AS soon;
    RETURN NULL;
END $$;
CREATE TRIGGER notify AFTER INSERT ON due_task REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION due_task_notify();

-- How long a task waits after an attempt that has failed: 1 s, 2 s, 4 s, up to 5 min. The random part keeps tasks that
-- failed together from coming back together.
CREATE FUNCTION due_task_backoff(attempts int) RETURNS interval
LANGUAGE sql AS $$
    SELECT least(interval '1 s' * 2 ^ least(attempts - 1, 20), interval '5 min') * (1 + random() / 10)
$$;

-- The functions below are for workers, in READ COMMITTED.

-- Ends an attempt that has failed. The next one waits, or the task has failed.
CREATE FUNCTION due_task_fail(task bigint, reason text) RETURNS void
LANGUAGE sql AS $$
    UPDATE due_task
    SET started = NULL, error = reason,
        state = CASE WHEN attempts >= max_attempts THEN 'failed' ELSE 'waiting' END,
        due = clock_timestamp()
              + CASE WHEN attempts >= max_attempts THEN interval '0' ELSE due_task_backoff(attempts) END
    WHERE id = task AND started IS NOT NULL
$$;

-- Begins attempts of the tasks that have been due for longest in these shards, and fences by their shards. Counts the
-- attempts before they run, so that a task that kills its worker has an end too. A task with a failed attempt, or with
-- one attempt in all, is taken alone: what others do must not count for it. `since` bounds the scan: before it are the
-- entries of tasks that are done, until the next VACUUM.
CREATE FUNCTION due_task_take(
    lease text, shards int[], tokens bigint[], most int, since timestamptz DEFAULT '-infinity') RETURNS SETOF due_task
LANGUAGE plpgsql AS $$
DECLARE
    ids     bigint[];
    fences  bigint[];
    cut_off bigint;
BEGIN
    LOOP
        SELECT array_agg(id), array_agg(DISTINCT token), min(id) FILTER (WHERE started IS NOT NULL)
        INTO ids, fences, cut_off
        FROM (SELECT task.*, own.token, row_number() OVER so_far AS n, bool_and(is_new) OVER so_far AS are_new
              FROM unnest(shards, tokens) AS own (shard, token), LATERAL (
                  -- now() is the begin of the transaction. Unlike clock_timestamp(), it can bound a scan of the index.
                  SELECT id, due, started, attempts = 0 AND max_attempts IS DISTINCT FROM 1 AS is_new FROM due_task
                  WHERE due_task.shard = own.shard AND state = 'waiting' AND due BETWEEN since AND now()
                  ORDER BY due, id LIMIT most) AS task
              WINDOW so_far AS (ORDER BY task.due, task.id)
              ORDER BY task.due, task.id LIMIT most) AS first
        WHERE n = 1 OR are_new;
        EXIT WHEN ids IS NULL;
        PERFORM lease_fence_many(array_fill(lease, ARRAY[cardinality(fences)]), fences);
        IF cut_off IS NULL THEN
            RETURN QUERY
                WITH taken AS (
                    UPDATE due_task SET attempts = attempts + 1, started = clock_timestamp()
                    -- Not state = 'waiting', for which the planner may scan all of the other index.
                    WHERE id = ANY (ids) AND state NOT IN ('done', 'failed') AND started IS NULL
                    RETURNING *)
                SELECT * FROM taken ORDER BY due, id;
            EXIT WHEN FOUND;
        ELSE
            -- This worker has no attempt that runs. The first time, it may have been cut off by another task.
            UPDATE due_task SET started = NULL, error = 'the attempt was cut off'
            WHERE id = cut_off AND attempts = 1 AND max_attempts IS DISTINCT FROM 1;
            IF NOT FOUND THEN
                PERFORM due_task_fail(cut_off, 'the attempt was cut off');
            END IF;
        END IF;
    END LOOP;
END $$;

-- Fences, and returns those of the tasks whose attempt may still do its work. Locks their rows: none can end or be
-- deleted meanwhile.
CREATE FUNCTION due_task_hold(lease text, tokens bigint[], tasks bigint[], tries int[]) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_fence_many(array_fill(lease, ARRAY[cardinality(tokens)]), tokens);
    RETURN QUERY
        SELECT id FROM due_task
        WHERE id = ANY (tasks) AND attempts = tries[array_position(tasks, id)] AND started IS NOT NULL
        FOR UPDATE;
END $$;

-- Ends attempts that have succeeded. A task is done, or due again after a while.
CREATE FUNCTION due_task_end(tasks bigint[], again interval[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE due_task
    SET started = NULL, error = NULL,
        state = CASE WHEN again[array_position(tasks, id)] IS NULL THEN 'done' ELSE state END,
        attempts = CASE WHEN again[array_position(tasks, id)] IS NULL THEN attempts ELSE 0 END,
        due = coalesce(clock_timestamp() + again[array_position(tasks, id)], due)
    WHERE id = ANY (tasks)
$$;

-- Gives back tasks whose attempts have not done anything.
CREATE FUNCTION due_task_put_back(tasks bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE due_task SET attempts = attempts - 1, started = NULL WHERE id = ANY (tasks) AND started IS NOT NULL
$$;

-- Seconds until the next task of these shards is due; NULL if there is none.
CREATE FUNCTION due_task_wait(shards int[], since timestamptz DEFAULT '-infinity') RETURNS float8
LANGUAGE sql AS $$
    SELECT extract(epoch FROM min(task.due) - clock_timestamp())
    FROM unnest(shards) AS own (shard), LATERAL (
        SELECT due FROM due_task WHERE due_task.shard = own.shard AND state = 'waiting' AND due >= since
        ORDER BY due, id LIMIT 1) AS task
$$;
