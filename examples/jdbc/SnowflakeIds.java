import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/** Ids for rows that do not exist yet, drawn in blocks. Threads may share one. */
public final class SnowflakeIds {
    private final int block;
    private long[] ids = {};
    private int used;

    public SnowflakeIds(int block) {
        this.block = block;
    }

    /** The next id. Draws a block over this connection when the last one is used up. */
    public synchronized long next(Connection connection) throws SQLException {
        if (used == ids.length) {
            ids = draw(connection, block);
            used = 0;
        }
        return ids[used++];
    }

    /** Draws ids that no other session gets, also if the transaction rolls back. */
    public static long[] draw(Connection connection, int count) throws SQLException {
        try (PreparedStatement draw = connection.prepareStatement("SELECT id FROM snowflake_next_many(?) AS id")) {
            draw.setInt(1, count);
            long[] ids = new long[count];
            try (ResultSet rows = draw.executeQuery()) {
                for (int i = 0; rows.next(); i++) {
                    ids[i] = rows.getLong(1);
                }
            }
            return ids;
        }
    }
}
