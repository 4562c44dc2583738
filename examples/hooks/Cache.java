// A program with a grown heap that produces garbage all the time, as a server does.
//
//   java -XX:+UseG1GC -cp /app Cache 200          as the first process of a container
//
// The program needs no code for resizes: its container has the variable
// VSCALED_BEFORE_SHRINK: '["jcmd", "1", "GC.run"]'. For tests, when the file /app/grow exists, the program allocates the
// same amount again, drops it, and removes the file. While /app/calm exists, it produces a tenth of the garbage.
import java.io.File;
import java.util.ArrayList;

public class Cache {
    static volatile Object garbage;

    public static void main(String[] arguments) throws Exception {
        int mebibytes = Integer.parseInt(arguments[0]);
        File grow = new File("/app/grow");
        File calm = new File("/app/calm");
        grow(mebibytes);
        new File("/app/ready").createNewFile();
        while (true) {
            if (grow.exists()) {
                grow(mebibytes);
                grow.delete();
            }
            garbage = new byte[1 << 18];
            Thread.sleep(calm.exists() ? 100 : 10);
        }
    }

    static void grow(int mebibytes) {
        ArrayList<byte[]> held = new ArrayList<>();
        for (int i = 0; i < mebibytes * 4; i++) {
            // A little less than a quarter of a region.
            held.add(new byte[(1 << 18) - 64]);
        }
        garbage = held;
        garbage = null;
    }
}
