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

// Output runs a command and gives its standard output. The process is killed when ctx ends. Where it is stuck in the kernel, it
// is left behind, with a goroutine that ends with it. The error is [ErrSilent] then, and otherwise the first line that the command
// says on standard error, if it says one.
func Output(ctx context.Context, command ...string) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	got := make(chan result, 1)
	go func() {
		out, err := run(ctx, command)
		got <- result{out, err}
	}()
	r, ok := Wait(ctx, got)
	if !ok || r.err != nil && ctx.Err() != nil {
		return nil, ErrSilent
	}
	return r.out, r.err
}

func run(ctx context.Context, command []string) ([]byte, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if message, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(said.String()), "hbmfs: "), "\n"); message != "" {
			return nil, errors.New(message)
		}
		return nil, fmt.Errorf("run %s in a process of its own: %w", strings.Join(command, " "), err)
	}
	return out.Bytes(), nil
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
