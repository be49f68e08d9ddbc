// Package aside makes calls that may hang in a process that can be left behind. A call into a dead mount or a broken
// driver may wait where not even SIGKILL reaches.
//
// [Output] runs a command and gives its output. An [Asker] asks the daemons of mounts: it has a hidden command of hbmfs
// read files of theirs. [ReadFile] is the work of that command.
package aside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// ErrSilent says that a process did not answer in time.
var ErrSilent = errors.New("no answer in time")

// HelperTime bounds a process that needs milliseconds as a rule.
const HelperTime = 10 * time.Second

// Grace is for a process to end that was killed.
const Grace = time.Second

// startTime is how long a process may take to start. On a busy machine it takes seconds, which says nothing about a daemon or a driver.
const startTime = time.Minute

const beginning = "\n"

// Begin says on a process's output that it puts its question now. The time counts from then on.
func Begin(to io.Writer) error {
	_, err := io.WriteString(to, beginning)
	return err
}

// Output runs a command and gives its standard output. The process is killed when ctx ends, or patience after it has said [Begin]. Where it is
// stuck in the kernel, it is left behind, with a goroutine that ends with it. The error is [ErrSilent] then, and otherwise the first line that
// the command says on standard error, if it says one.
func Output(ctx context.Context, patience time.Duration, command ...string) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got, begun := make(chan result, 1), make(chan struct{})
	go func() {
		out, err := run(ctx, command, begun)
		got <- result{out, err}
	}()
	go func() { // ends with ctx
		if late(patience, begun, ctx.Done()) {
			cancel()
		}
	}()
	r, ok := Wait(ctx, got)
	if !ok || r.err != nil && ctx.Err() != nil {
		return nil, ErrSilent
	}
	return r.out, r.err
}

// late waits until a process is late, which gives true, or until ended is closed.
func late(patience time.Duration, begun, ended <-chan struct{}) bool {
	select {
	case <-begun:
	case <-time.After(startTime):
		return true
	case <-ended:
		return false
	}
	select {
	case <-time.After(patience):
		return true
	case <-ended:
		return false
	}
}

// output is that of a process. Its first bytes close begun.
type output struct {
	text  bytes.Buffer // not embedded: its ReadFrom would go past Write
	begun chan<- struct{}
}

func (o *output) Write(p []byte) (int, error) {
	if o.begun != nil {
		close(o.begun)
		o.begun = nil
	}
	return o.text.Write(p)
}

func run(ctx context.Context, command []string, begun chan<- struct{}) ([]byte, error) {
	var said bytes.Buffer
	out := output{begun: begun}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if message, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(said.String()), "hbmfs: "), "\n"); message != "" {
			return nil, errors.New(message)
		}
		return nil, fmt.Errorf("run %s in a process of its own: %w", strings.Join(command, " "), err)
	}
	return bytes.TrimPrefix(out.text.Bytes(), []byte(beginning)), nil
}

// Wait gives the value that comes from got, by a process that the end of ctx kills. ok is false where nothing came within
// [Grace] after that.
func Wait[T any](ctx context.Context, got <-chan T) (v T, ok bool) {
	select {
	case v := <-got:
		return v, true
	case <-ctx.Done():
	}
	select {
	case v := <-got:
		return v, true
	case <-time.After(Grace):
		return v, false
	}
}
