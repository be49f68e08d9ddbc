// Command pod is the program in the pods of the cluster's tests, and the pause container beside them. It reads the volume at /data:
// through the mount, by a mapping, and past FUSE from the backing files that the control channel gives.
//
//	pod pause                        wait for a signal, as Kubernetes' own pause does
//	pod write DIR SIZE NAME...       make files whose bytes follow from their names
//	pod serve [FILE]                 read FILE's first byte at once, then do what is asked at :8080
//	pod eat MIB                      use memory
//	pod --csi-address=...            what node-driver-registrar and livenessprobe do
//
// GET /do?what=hash|past|hold|held|loop|so-far|who&file=NAME answers in JSON. A byte that is not the file's is "wrong". In a checkpoint volume
// what=begin|publish|begin-past|publish-past|remove|change|see|list|owner is done with the checkpoint or path NAME. In a KV volume
// what=kv-put|kv-get|kv-pin|kv-unpin|kv-half|kv-rest|kv-loop is done with blocks whose keys begin with the last part of NAME, a namespace is the first.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		args = []string{"pause"}
	}
	switch verb := args[0]; {
	case verb == "pause":
		return pause()
	case verb == "write" && len(args) > 3:
		return write(args[1], args[2], args[3:])
	case verb == "eat" && len(args) == 2:
		return eat(args[1])
	case strings.HasPrefix(verb, "--csi-address="):
		return sidecar(args)
	case verb == "serve":
		return serve(strings.Join(args[1:], ""))
	}
	return errors.New("usage: pod pause | write DIR SIZE NAME... | serve [FILE] | eat MIB")
}

// pause waits, and takes in children that lost their parents.
func pause() error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			break
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

func eat(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	var all [][]byte
	for range n {
		p := make([]byte, 1<<20)
		for i := 0; i < len(p); i += 4096 {
			p[i] = 1
		}
		all = append(all, p)
	}
	fmt.Println("ate", len(all), "MiB")
	return pause()
}

func write(dir, text string, names []string) error {
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := make([]byte, size)
		fill(p, name, 0)
		if err := os.WriteFile(filepath.Join(dir, name), p, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fill gives the bytes that a file of this name has from off on, which is a multiple of 8.
func fill(p []byte, name string, off int64) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	seed := h.Sum64()
	var word [8]byte
	for i := 0; i < len(p); i += 8 { // splitmix64
		z := seed + (uint64(off+int64(i))/8+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(word[:], z^z>>31)
		copy(p[i:], word[:])
	}
}

// root is where the volume is.
const root = "/data"

// server serves the requests of the tests, one after the other.
type server struct {
	mu    sync.Mutex
	first int64 // nanoseconds of the clock when the first byte was there
	held  *held
	loop  *loop

	drafts  map[string]*control.DraftClient // those that were begun past the kernel
	engines map[string]*engine              // of KV namespaces
}

func serve(first string) error {
	s := &server{engines: map[string]*engine{}}
	if first != "" {
		in, err := os.Open(filepath.Join(root, first))
		if err != nil {
			return err
		}
		var p [1]byte
		if _, err := in.ReadAt(p[:], 0); err != nil {
			return err
		}
		s.first = time.Now().UnixNano()
		if err := in.Close(); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /do", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var a answer
		err := s.do(r.URL.Query().Get("what"), r.URL.Query().Get("file"), &a)
		var wrong *wrongError
		switch {
		case errors.As(err, &wrong):
			a.Wrong = err.Error()
		case err != nil:
			a.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(a) // a client that has gone away hears nothing
	})
	ended := make(chan error, 2)
	go func() { ended <- pause() }()
	go func() {
		ended <- (&http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: time.Minute}).ListenAndServe()
	}()
	return <-ended
}

// answer is the outcome of a request.
type answer struct {
	Error   string   `json:"error"`   // it failed
	Wrong   string   `json:"wrong"`   // a byte differed, which must never happen
	SHA256  string   `json:"sha256"`  // of the read data
	Bytes   int64    `json:"bytes"`   // read well
	Past    int64    `json:"past"`    // of those past FUSE
	First   int64    `json:"first"`   // when the first byte was there, in nanoseconds of the clock
	Passes  int64    `json:"passes"`  // of a loop
	Errors  int64    `json:"errors"`  // of a loop
	Longest int64    `json:"longest"` // nanoseconds between two reads of a loop
	Facts   []string `json:"facts"`   // of the process

	Blocks map[string]int64 `json:"blocks"` // of a KV volume: how many, by what became of them, and by tier
}

func (s *server) do(what, file string, a *answer) (err error) {
	a.First = s.first
	path := filepath.Join(root, file)
	switch what {
	case "hello":
	case "who":
		a.Facts, err = who()
	case "hash":
		a.SHA256, a.Bytes, err = hash(path, file)
	case "past":
		a.SHA256, a.Bytes, a.Past, err = past(path, file)
	case "hold":
		s.held, err = hold(path, file)
	case "held":
		a.Past, err = s.held.check(file)
		a.Bytes = a.Past
	case "loop": // over a file that stays open and mapped
		s.loop, err = startLoop(path, file)
	case "so-far":
		s.loop.answer(a)
	default:
		known, done := s.checkpoint(what, file, a)
		if !known {
			known, done = s.kv(what, file, a)
		}
		if err = done; !known {
			err = fmt.Errorf("unknown order %q", what)
		}
	}
	return err
}

// who says which rights the process has.
func who() (facts []string, err error) {
	status, err := os.ReadFile("/proc/self/status")
	for line := range strings.SplitSeq(string(status), "\n") {
		if name, value, ok := strings.Cut(line, ":\t"); ok && (name == "CapEff" || name == "Uid" || name == "NoNewPrivs" || name == "Seccomp") {
			facts = append(facts, name+" "+strings.Fields(value)[0])
		}
	}
	return facts, err
}
