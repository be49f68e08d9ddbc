package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

// askTime is how long a daemon may take to say how it is.
const askTime = 5 * time.Second

// answer is what `hbmfs top-aside` says: the text of a file in .hbmfs, or the state that the mount is in.
type answer struct {
	State string `json:"state"`
	Error string `json:"error"`
	Text  []byte `json:"text"`
}

// asking is the questions to one mount: one at a time, and none while an answer is late.
type asking struct {
	turn  chan struct{}             // of the question that is put
	since atomic.Pointer[time.Time] // when it was put, nil for none
}

// late is for how long the mount has not answered, 0 where it does or need not.
func (a *asking) late() time.Duration {
	if since := a.since.Load(); since != nil && time.Since(*since) >= askTime {
		return time.Since(*since)
	}
	return 0
}

// errStuck says that a daemon does not answer.
var errStuck = fmt.Errorf("its daemon gave no answer within %v: is it stopped or stuck?", askTime)

// ask reads a file of .hbmfs in a process of its own, since whoever opens a file of a stuck daemon may wait where no signal
// reaches. A process that waits for too long is left behind: the mount is not asked again before it has its answer, which
// comes when the daemon goes on, or is gone.
func (v *held) ask(ctx context.Context, name string) ([]byte, error) {
	if v.asking.late() > 0 {
		return nil, errStuck
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errStuck)
	defer cancel()
	select {
	case v.asking.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	now := time.Now()
	v.asking.since.Store(&now)
	got := make(chan answer, 1)
	go func() { // ends with the process, and that with the mount or the host; a stuck daemon can delay it
		got <- v.host.runAside(filepath.Join(v.mount(), ".hbmfs", name))
		v.asking.since.Store(nil)
		<-v.asking.turn
	}()
	select {
	case a := <-got:
		if a.State != "ok" {
			return nil, errors.New(a.Error)
		}
		return a.Text, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (h *Host) runAside(file string) (a answer) {
	var out bytes.Buffer
	cmd := exec.CommandContext(h.ctx, h.opt.HBMFS, "top-aside", "--", file)
	cmd.Stdout = &out
	err := cmd.Run()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &a)
	}
	if err != nil {
		return answer{Error: fmt.Sprintf("its status cannot be read: %v", err)}
	}
	return a
}
