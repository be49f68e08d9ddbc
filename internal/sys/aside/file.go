package aside

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileCommand is the hidden command of hbmfs that calls [ReadFile]. Its argument is a path.
const FileCommand = "file-aside"

// State is how a mount is, as one of its files shows.
type State string

// The states.
const (
	OK         State = "ok"
	Silent     State = "not answering" // its daemon is there and says nothing: stopped, or stuck
	Dead       State = "dead"          // its daemon is gone
	Unreadable State = "unreadable"
)

// Answer is the answer of a mount: the text of the file that it was asked for, or why not.
type Answer struct {
	State State  `json:"state"`
	Error string `json:"error,omitempty"`
	Text  []byte `json:"text,omitempty"`
}

// mostText bounds a text: the status of a thousand sets and 64 clients has a tenth.
const mostText = 16 << 20

// ReadFile reads a file of a mount and writes an [Answer]. A directory has no text, but its daemon is asked all the same.
func ReadFile(name string, to io.Writer) error {
	if err := Begin(to); err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(read(name))
}

func read(name string) Answer {
	text, err := textOf(name)
	switch {
	case errors.Is(err, syscall.ENOTCONN), errors.Is(err, syscall.ECONNABORTED):
		return Answer{State: Dead, Error: "its daemon is gone: mount it again, or take it away with hbmfs umount"}
	case errors.Is(err, syscall.EACCES):
		return Answer{State: Unreadable, Error: err.Error() + ": ask as its mounter: others may look if it is mounted with --allow-other, and if the permissions of its source let them"}
	case err != nil:
		return Answer{State: Unreadable, Error: err.Error()}
	}
	return Answer{State: OK, Text: text}
}

func textOf(name string) ([]byte, error) {
	var st unix.Statfs_t // unlike stat and open, which the kernel may answer by itself, this asks the daemon
	if err := unix.Statfs(name, &st); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, mostText))
}
