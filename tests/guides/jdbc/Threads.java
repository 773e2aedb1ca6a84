import java.sql.Connection;
import java.sql.DriverManager;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Eight threads share the blocks of one SnowflakeIds, and print what they got: java Threads.java URL. */
class Threads {
    public static void main(String[] arguments) throws Exception {
        SnowflakeIds ids = new SnowflakeIds(500);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        CyclicBarrier together = new CyclicBarrier(8);
        List<Future<List<Long>>> drawn = new ArrayList<>();
        for (int thread = 0; thread < 8; thread++) {
            drawn.add(threads.submit(() -> {
                List<Long> own = new ArrayList<>();
                try (Connection connection = DriverManager.getConnection(arguments[0])) {
                    together.await();
                    for (int i = 0; i < 20_000; i++) {
                        own.add(ids.next(connection));
                    }
                }
                return own;
            }));
        }
        try {
            for (Future<List<Long>> own : drawn) {
                own.get().forEach(System.out::println);
            }
        } finally {
            threads.shutdownNow();
        }
    }
}
