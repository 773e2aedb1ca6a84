import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Arrays;

/**
 * Inserts orders in one of the ways of the guide, and prints their ids: java Orders URL one|keys|batch|array|shared COUNT.
 */
public final class Orders {
    public static void main(String[] arguments) throws Exception {
        String[] items = new String[Integer.parseInt(arguments[2])];
        Arrays.setAll(items, i -> "item " + i);
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            long[] ids = switch (arguments[1]) {
                case "one" -> new long[] {insertOne(connection, items[0])};
                case "keys" -> insertForKeys(connection, items);
                case "batch" -> insertBatch(connection, items);
                case "array" -> insertArray(connection, items);
                case "shared" -> insertShared(connection, items);
                default -> throw new IllegalArgumentException(arguments[1]);
            };
            connection.commit();
            Arrays.stream(ids).forEach(System.out::println);
        }
    }

    /** One row: the default draws the id, and the driver returns it. */
    static long insertOne(Connection connection, String item) throws SQLException {
        String sql = "INSERT INTO orders (item) VALUES (?)";
        try (PreparedStatement insert = connection.prepareStatement(sql, new String[] {"id"})) {
            insert.setString(1, item);
            insert.executeUpdate();
            try (ResultSet keys = insert.getGeneratedKeys()) {
                keys.next();
                return keys.getLong("id");
            }
        }
    }

    /** Many rows by their generated keys: the slow way, one statement for each row. */
    static long[] insertForKeys(Connection connection, String[] items) throws SQLException {
        String sql = "INSERT INTO orders (item) VALUES (?)";
        try (PreparedStatement insert = connection.prepareStatement(sql, new String[] {"id"})) {
            for (String item : items) {
                insert.setString(1, item);
                insert.addBatch();
            }
            insert.executeBatch();
            long[] ids = new long[items.length];
            try (ResultSet keys = insert.getGeneratedKeys()) {
                for (int i = 0; keys.next(); i++) {
                    ids[i] = keys.getLong("id");
                }
            }
            return ids;
        }
    }

    /** Many rows: ids first, then a batch that the driver can rewrite. */
    static long[] insertBatch(Connection connection, String[] items) throws SQLException {
        long[] ids = SnowflakeIds.draw(connection, items.length);
        String sql = "INSERT INTO orders (id, item) VALUES (?, ?)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            for (int i = 0; i < items.length; i++) {
                insert.setLong(1, ids[i]);
                insert.setString(2, items[i]);
                insert.addBatch();
            }
            insert.executeBatch();
        }
        return ids;
    }

    /** Many rows: ids first, then all of them in one statement. */
    static long[] insertArray(Connection connection, String[] items) throws SQLException {
        long[] ids = SnowflakeIds.draw(connection, items.length);
        String sql = "INSERT INTO orders (id, item) SELECT id, item FROM unnest(?, ?) AS made(id, item)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            Array idArray = connection.createArrayOf("bigint", Arrays.stream(ids).boxed().toArray());
            Array itemArray = connection.createArrayOf("text", items);
            insert.setArray(1, idArray);
            insert.setArray(2, itemArray);
            insert.executeUpdate();
            idArray.free();
            itemArray.free();
        }
        return ids;
    }

    /** Blocks of 500 ids, for all threads. */
    static final SnowflakeIds IDS = new SnowflakeIds(500);

    /** Rows that come one by one, each with an id that is known before. */
    static long[] insertShared(Connection connection, String[] items) throws SQLException {
        long[] ids = new long[items.length];
        String sql = "INSERT INTO orders (id, item) VALUES (?, ?)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            for (int i = 0; i < items.length; i++) {
                ids[i] = IDS.next(connection);
                insert.setLong(1, ids[i]);
                insert.setString(2, items[i]);
                insert.executeUpdate();
            }
        }
        return ids;
    }
}
