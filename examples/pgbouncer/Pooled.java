import java.io.IOException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/**
 * Draws ids over three connections of PgBouncer in transaction mode, and prints them. Needs PostgreSQL's JDBC driver.
 *
 * <p>java -cp postgresql.jar Pooled.java 'jdbc:postgresql://127.0.0.1:6432/shop?prepareThreshold=0' USER COUNT
 */
public class Pooled {
    public static void main(String[] arguments) throws IOException, SQLException {
        String url = arguments[0], user = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        for (int n = 0; n < 3; n++) {
            try (Connection connection = DriverManager.getConnection(url, user, System.getenv("PGPASSWORD"));
                    PreparedStatement draw = connection.prepareStatement("SELECT snowflake_next()")) {
                for (int i = 0; i < count; i++) {
                    try (ResultSet rows = draw.executeQuery()) {
                        rows.next();
                        System.out.println(rows.getLong(1));
                        // A full device raises no exception.
                        if (System.out.checkError()) throw new IOException("the ids cannot be written");
                    }
                }
            }
        }
    }
}
