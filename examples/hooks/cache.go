// A program that uses as much memory as its Go memory limit permits, and accepts new limits while it runs.
//
//	cache 256            as the first process of a container, with a memory limit of 256 MiB
//	cache limit BYTES    as the hook of the same container
//
// Its container has the variable VSCALED_BEFORE_SHRINK: '["/app/cache", "limit", "{new:75%}"]', and the same value for
// VSCALED_AFTER_GROW. Go reads GOMEMLIMIT only at the start, so the program must set the new limit itself: the hook sends it
// over a socket. For tests, when the file /app/grow exists, the program allocates up to its limit again and removes the file.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

const socket = "/app/limit.sock"

var garbage []byte

func main() {
	if len(os.Args) == 3 && os.Args[1] == "limit" {
		tell(os.Args[2])
		return
	}
	mebibytes, err := strconv.ParseInt(os.Args[1], 10, 64)
	check(err)
	// The collector runs only when the limit is near.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(mebibytes << 20 * 9 / 10)
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	check(err)
	go listen(listener)
	for round := 0; ; round++ {
		garbage = make([]byte, 1<<18)
		for i := 0; i < len(garbage); i += 4096 {
			garbage[i] = 1
		}
		var stats runtime.MemStats
		_, asked := os.Stat("/app/grow")
		if asked == nil || round < 2000 {
			runtime.ReadMemStats(&stats)
			full := stats.Sys-stats.HeapReleased > uint64(debug.SetMemoryLimit(-1))*8/10
			if full {
				os.Remove("/app/grow")
				os.WriteFile("/app/ready", nil, 0o644)
				round = 2000
			}
			continue
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Sets each received limit, returns unused memory to the kernel, and answers.
func listen(listener net.Listener) {
	for {
		caller, err := listener.Accept()
		check(err)
		text, _ := io.ReadAll(caller)
		if limit, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			debug.SetMemoryLimit(limit)
			debug.FreeOSMemory()
			fmt.Fprintf(caller, "the limit is %d\n", limit)
		}
		caller.Close()
	}
}

func tell(limit string) {
	server, err := net.Dial("unix", socket)
	check(err)
	_, err = io.WriteString(server, limit)
	check(err)
	check(server.(*net.UnixConn).CloseWrite())
	_, err = io.Copy(os.Stdout, server)
	check(err)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
