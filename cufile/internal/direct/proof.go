package direct

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Proof is a probe's answer about Direct for one file.
type Proof struct {
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
}

// Proofs remembers proofs, by the file: each is for one file on one device.
type Proofs struct {
	command   []string
	libraries driver.Libraries
	device    int

	turn  chan struct{} // guards known; a channel, since a caller must be able to give up waiting for another's probe, which takes seconds
	known map[fileID]Proof
}

type fileID struct{ dev, ino uint64 }

// NewProofs asks by a command, which may be empty, about files that go to a device.
func NewProofs(command []string, l driver.Libraries, device int) *Proofs {
	return &Proofs{command: command, libraries: l, device: device, turn: make(chan struct{}, 1), known: map[fileID]Proof{}}
}

// Question goes to the probe's standard input. Descriptor 3 is the file, or the directory in which the probe shall make one.
type Question struct {
	Libraries driver.Libraries `json:"libraries"`
	Device    int              `json:"device"`
	// Make is the name of the file to be made and written. Where it is empty, the descriptor is that of the file to be read or written.
	Make string `json:"make,omitempty"`
}

// ProbeFD is the descriptor that the probe reads, after the three standard ones.
const ProbeFD = 3

// Want fails unless the path is proven for a file.
func (k *Proofs) Want(ctx context.Context, b *source.Backing) error {
	p, err := k.Prove(ctx, b)
	if err == nil && p.Verdict != Proven {
		err = fmt.Errorf("%w: direct for %s is %s: %s", source.ErrUnavailable, b.Name, p.Verdict, p.Why)
	}
	return err
}

// Prove asks the probe about a file, once. It fails only when ctx ends; a failure of the probe is a verdict.
func (k *Proofs) Prove(ctx context.Context, b *source.Backing) (Proof, error) {
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil {
		return Proof{}, fmt.Errorf("stat %s: %w", b.Name, err)
	}
	id := fileID{st.Dev, st.Ino}
	return k.once(ctx, id, func() Proof { return k.probe(ctx, b) })
}

// ProveWrites asks a probe about files that are made in a directory, once for its filesystem. The probe makes one of its own
// there. It fails as Prove does.
func (k *Proofs) ProveWrites(ctx context.Context, directory string, dev uint64) (Proof, error) {
	return k.once(ctx, fileID{dev: dev}, func() Proof {
		file, err := os.Open(directory)
		if err != nil {
			return Proof{Unknown, err.Error()}
		}
		defer func() { _ = file.Close() }() // opened for reading: nothing is lost
		q := Question{k.libraries, k.device, ".hbmfs-probe-" + rand.Text()}
		defer func() { _ = unix.Unlinkat(int(file.Fd()), q.Make, 0) }() // the probe did as a rule
		return ask(ctx, k.command, q, file)
	})
}

// ProveWritesTo is ProveWrites where files are given and no directory is. The probe writes into one of them, which is open for
// writing, and the caller overwrites all of it.
func (k *Proofs) ProveWritesTo(ctx context.Context, fd int, dev uint64) (Proof, error) {
	return k.once(ctx, fileID{dev: dev}, func() Proof {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return Proof{Unknown, err.Error()}
		}
		file := os.NewFile(uintptr(own), "a file that is given")
		defer func() { _ = file.Close() }() // the file is the caller's
		return ask(ctx, k.command, Question{k.libraries, k.device, ""}, file)
	})
}

// once gives the proof about something, which probe makes if it is not known.
func (k *Proofs) once(ctx context.Context, id fileID, probe func() Proof) (Proof, error) {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return Proof{}, ctx.Err()
	}
	defer func() { <-k.turn }()
	if p, ok := k.known[id]; ok {
		return p, nil
	}
	p := probe()
	if err := ctx.Err(); err != nil {
		return Proof{}, err
	}
	k.known[id] = p
	return p, nil
}

// probe opens the file again, so that the probe has a description of its own, and asks.
func (k *Proofs) probe(ctx context.Context, b *source.Backing) Proof {
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", b.FD))
	if err != nil {
		return Proof{Unknown, "the file cannot be opened again: " + err.Error()}
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	return Prove(ctx, k.command, k.libraries, k.device, file)
}

// Prove runs the command, which reads a [Question] and answers with a [Proof], on an open file. cuFile keeps its settings and
// counters per process, and a broken set-up can crash or hang. So only a process of its own can be asked strictly.
func Prove(ctx context.Context, command []string, l driver.Libraries, device int, file *os.File) Proof {
	return ask(ctx, command, Question{Libraries: l, Device: device}, file)
}

func ask(ctx context.Context, command []string, q Question, file *os.File) Proof {
	if len(command) == 0 {
		return Proof{Unknown, "there is no command to prove it with"}
	}
	input, err := json.Marshal(q)
	if err != nil {
		return Proof{Unknown, err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	started := time.Now()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	cmd.ExtraFiles = []*os.File{file}
	cmd.WaitDelay = time.Second
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return Proof{Refuted, fmt.Sprintf("the probe did not end within %v", time.Since(started).Round(time.Second))}
	}
	if runErr != nil {
		last := strings.TrimSpace(stderr.String())
		return Proof{Refuted, strings.TrimSpace(fmt.Sprintf("the probe died: %v %s", runErr, last[max(0, len(last)-200):]))}
	}
	var p Proof
	if err := json.Unmarshal(stdout.Bytes(), &p); err != nil || (p.Verdict != Proven && p.Verdict != Refuted && p.Verdict != Unknown) {
		return Proof{Unknown, "the probe answered nothing that can be read"}
	}
	return p
}

// Answer is the probe's side: it reads a question from in, and writes to out the proof that prove gives of the file at [ProbeFD]. Any
// error of prove means that the path does not work here. Answer fails when in or out do.
func Answer(in io.Reader, out io.Writer, prove func(q Question) (Proof, error)) error {
	var q Question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("read the probe's question: %w", err)
	}
	p, err := prove(q)
	if err != nil {
		p = Proof{Refuted, err.Error()}
		if errors.Is(err, driver.ErrStatsUnknown) {
			p.Verdict = Unknown
		}
	}
	return json.NewEncoder(out).Encode(p)
}
