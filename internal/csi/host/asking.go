package host

import (
	"context"
	"path/filepath"
	"time"
)

// askTime is how long a daemon may take to give its status.
const askTime = 5 * time.Second

// ask reads a file of .hbmfs in a process of its own. A process that opens a file of a stuck daemon may wait where no
// signal reaches. A process that waits for too long is left behind.
func (v *nodeVolume) ask(ctx context.Context, name string) ([]byte, error) {
	a := v.host.asker.Ask(ctx, v.key, filepath.Join(v.mount(), ".hbmfs", name))
	return a.Text, a.Err()
}
