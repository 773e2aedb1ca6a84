import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.OffsetDateTime;

/** What the guide says of types: java -cp postgresql.jar Pitfalls.java URL. */
class Pitfalls {
    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0]);
                Statement statement = connection.createStatement()) {
            ResultSet row = statement.executeQuery("SELECT snowflake_next()");
            row.next();
            try {
                row.getInt(1);
                throw new AssertionError("getInt read an id");
            } catch (SQLException refused) {
                check("22003".equals(refused.getSQLState()), refused.getSQLState());
            }
            check(row.getObject(1) instanceof Long, "the type of an id");
            statement.execute("SELECT lease_define('jobs', 1, '10 s')");
            row = statement.executeQuery("SELECT expires_at FROM lease_acquire('jobs', bind_session => true)");
            row.next();
            check(row.getObject(1, OffsetDateTime.class) == null, "a lease bound to a session has no end");
            row = statement.executeQuery("SELECT ends_at FROM snowflake_layout('time:62 sequence:1 epoch:2020-01-01')");
            row.next();
            check(row.getObject(1, OffsetDateTime.class).equals(OffsetDateTime.MAX), "infinity");
        }
    }

    static void check(boolean met, String what) {
        if (!met) {
            throw new AssertionError(what);
        }
    }
}
