import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLWarning;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import org.postgresql.Driver;

/**
 * Makes 64-bit ids under a worker id that is leased from a pool of idgen.
 *
 * Needs Java 17 or later, and PostgreSQL's JDBC driver. On the coordinator, define the pool once. The layout has 10
 * bits for the worker id, so 1024 at most:
 *
 *     SELECT worker_pool_define('shop-ids', count => 1024, ttl => '30 s');
 *
 * Any role can lease. This prints ids. TTL is in seconds, and at most the pool's:
 *
 *     java -cp postgresql.jar WorkerIds.java 'jdbc:postgresql://ids1/ids?user=app' shop-ids pod-7 30 1000
 *
 * In your own program, make one WorkerIds for the process, call next() in any number of threads, and close() at the
 * end. The first call of next() waits for the worker id. docs/worker-ids.md explains the rules that this file keeps.
 *
 * Guaranteed: no other holder of a worker id of the pool makes the same id, not even after a pause or a step of the
 * clock. The ids of one process increase, under another worker id too. Not guaranteed: that there is always an id. If
 * the coordinator is away, ids end a TTL after the last renewal. If the clock is set back, they wait for it.
 */
public class WorkerIds implements AutoCloseable {
    // The layout snowflake: 41 bits of time in ms since the epoch, 10 of worker id, 12 of sequence.
    static final long EPOCH_MS = 1288834974657L;
    static final int MAX_WORKER_ID = 1023;
    static final int MAX_SEQUENCE = 4095;

    final String url, pool, owner;
    final long ttlMs;
    final Properties limits = new Properties();
    final Thread keeper = new Thread(this::keepLease);

    // Used by the keeper only. `told` is the last not_after that the server returned, as text to keep it unchanged.
    Connection db;
    String token, told;
    long acquired, since;

    // Guarded by this: time and sequence of the last id, in one number. The next one is greater under any worker id.
    long last;
    // Guarded by this: what is granted and confirmed. The times are in ms since the epoch of the layout.
    long workerId = -1, notBefore, notAfter;
    Throwable error;
    boolean closed;

    public WorkerIds(String url, String pool, String owner, double ttl) {
        this.pool = pool;
        this.owner = owner;
        ttlMs = (long) (ttl * 1000);
        // Seconds for one connection attempt or statement, so that several fit into the interval. socketTimeout ends
        // the wait for a silent server, statement_timeout the wait for a lock or a standby. worker_confirm() waits for
        // the standbys, not the commit: a commit succeeds even if its wait is canceled.
        long patience = Math.max(2, ttlMs / 6000);
        limits.setProperty("connectTimeout", "" + patience);
        limits.setProperty("socketTimeout", "" + (patience + 1));
        // The URL wins over properties, and the end of it over the rest.
        String given = Driver.parseURL(url, null).getProperty("options", "");
        String options = given + " -c statement_timeout=" + patience + "s -c synchronous_commit=local";
        this.url = url + (url.contains("?") ? "&" : "?") + "options="
            + URLEncoder.encode(options, StandardCharsets.UTF_8).replace("+", "%20");
        keeper.setDaemon(true);
        keeper.start();
    }

    /** As next(30000). */
    public long next() throws Exception {
        return next(30_000);
    }

    /**
     * Returns an id that is greater than all before it. Waits for the lease and for the clock. Throws an exception if
     * the interval is over and the last attempt to renew it has failed, and TimeoutException after `timeoutMs`. A later
     * call may succeed.
     */
    public synchronized long next(long timeoutMs) throws Exception {
        long start = System.nanoTime();
        while (!closed) {
            long now = System.currentTimeMillis() - EPOCH_MS;
            // After the last sequence of a millisecond, adding 1 carries into the time.
            long position = Math.max(last + 1, Math.max(now, notBefore) << 12);
            long tick = position >> 12;
            // The time of the id counts, not the clock: a pause right here does no harm.
            if (tick < notAfter && tick <= now) {
                last = position;
                return tick << 22 | workerId << 12 | position & MAX_SEQUENCE;
            }
            String state = tick < notAfter ? "the clock is " + (tick - now) + " ms behind the next id"
                : workerId < 0 ? "there is no worker lease yet" : "the worker lease is over";
            if (tick >= notAfter && error != null) throw new Exception(state + ": " + error.getMessage(), error);
            long left = timeoutMs - (System.nanoTime() - start) / 1_000_000;
            if (left <= 0) throw new TimeoutException(state);
            // Until the clock reaches the id, or the keeper has an answer.
            wait(tick < notAfter ? Math.min(tick - now, left) : left);
        }
        throw new IllegalStateException("closed");
    }

    /** Ends all waits and releases the worker id. No id is made after that. */
    @Override
    public void close() throws InterruptedException {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        keeper.join();
    }

    // All that follows runs in the keeper, which never waits for the server while it holds the monitor.

    void keepLease() {
        int failures = 0;
        while (true) {
            Throwable failure = null;
            double pauseMs = ttlMs / 3.0 * ThreadLocalRandom.current().nextDouble(0.9, 1.1);
            try {
                extendLease();
            } catch (Throwable e) {
                // This does not mean that the lease is lost: ids go on to the end of the confirmed interval. Try again
                // soon, but without a lease less and less often: a wrong password stays wrong.
                failure = e;
                failures = System.currentTimeMillis() - EPOCH_MS < notAfter ? 0 : Math.min(failures + 1, 10);
                pauseMs = Math.min(Math.min(ttlMs / 6.0, 5000) * (1 << failures), 10000)
                    * ThreadLocalRandom.current().nextDouble(0.5, 1);
                disconnect();
            }
            synchronized (this) {
                error = failure;
                notifyAll();
                try {
                    if (!closed) wait(1 + (long) pauseMs);
                } catch (InterruptedException e) {
                    closed = true;
                }
                if (closed) break;
            }
        }
        try {
            // With the last time used, the next holder begins right after it.
            if (db != null && token != null)
                call("SELECT worker_release(?, ?::bigint, to_timestamp(? / 1000.0), ?::timestamptz)",
                    pool, token, (last >> 12) + EPOCH_MS, told);
        } catch (Throwable e) {
            // The lease ends by itself, a ttl after the last renewal.
        }
        disconnect();
    }

    void extendLease() throws SQLException {
        // With autocommit, as JDBC has it: in a transaction block the calls are refused.
        if (db == null) db = DriverManager.getConnection(url, limits);
        // The interval lasts a ttl from here, even if this clock differs from the coordinator's.
        long reached;
        synchronized (this) {
            reached = Math.max(System.currentTimeMillis(), (last >> 12) + EPOCH_MS);
        }
        if (token != null) renew(reached);
        if (token == null) acquire(reached);
        if (acquired > MAX_WORKER_ID) {
            call("SELECT worker_release(?, ?::bigint)", pool, token);
            token = null;
            throw new SQLException("worker id " + acquired + " does not fit into 10 bits");
        }
        confirm(reached);
    }

    void renew(long reached) throws SQLException {
        try {
            told = call("SELECT not_after::text"
                + " FROM worker_renew(?, ?::bigint, ?::timestamptz, to_timestamp(? / 1000.0))",
                pool, token, told, reached)[0];
        } catch (SQLException e) {
            if (!"55000".equals(e.getSQLState())) throw e;
            // The lease is lost, another process renews with this token, or the answer to a renewal was lost.
            token = null;
            synchronized (this) {
                notAfter = 0;
            }
        }
    }

    void acquire(long reached) throws SQLException {
        // Round inwards: not_before up, and in confirm() not_after down.
        String[] row = call("SELECT worker_id, ceil(extract(epoch FROM not_before) * 1000)::bigint,"
            + " not_after::text, token"
            + " FROM worker_acquire(?, ?, ? * interval '1 ms', to_timestamp(? / 1000.0))",
            pool, owner, ttlMs, reached);
        acquired = Long.parseLong(row[0]);
        since = Long.parseLong(row[1]);
        told = row[2];
        token = row[3];
    }

    void confirm(long reached) throws SQLException {
        // worker_confirm() waits until the synchronous standbys have the interval, and returns its end. If that is
        // later than `told`, another process has renewed with this token.
        long until = Long.parseLong(call("SELECT floor(extract(epoch FROM"
            + " least(worker_confirm(?, ?::bigint), ?::timestamptz)) * 1000)::bigint", pool, token, told)[0]);
        synchronized (this) {
            workerId = acquired;
            notBefore = since - EPOCH_MS;
            notAfter = until - EPOCH_MS;
        }
        if (reached >= until) throw new SQLException("this clock is too far ahead of the database's");
    }

    String[] call(String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) statement.setObject(i + 1, arguments[i]);
            ResultSet row = statement.executeQuery();
            row.next();
            // A notice says how long next() will wait, if other holders may have used the next times.
            for (SQLWarning notice = statement.getWarnings(); notice != null; notice = notice.getNextWarning())
                System.err.println(notice.getMessage());
            String[] values = new String[row.getMetaData().getColumnCount()];
            for (int i = 0; i < values.length; i++) values[i] = row.getString(i + 1);
            return values;
        }
    }

    void disconnect() {
        try {
            if (db != null) db.close();
        } catch (Throwable e) {
            // The connection is of no use either way.
        }
        db = null;
    }

    public static void main(String[] args) throws Exception {
        try (WorkerIds ids = new WorkerIds(args[0], args[1], args[2], Double.parseDouble(args[3]))) {
            for (long i = Long.parseLong(args[4]); i > 0; i--) {
                System.out.println(ids.next());
                // A full device raises no exception.
                if (System.out.checkError()) throw new IOException("the ids cannot be written");
            }
        }
    }
}
