package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

// openLog opens the log: standard error in the foreground, unless a file was named.
func (m *Mount) openLog() (out io.Writer, closeLog func(), err error) {
	if m.LogFile == "" && m.Foreground {
		return os.Stderr, func() {}, nil
	}
	name := m.logName()
	if name == "" {
		return nil, nil, errors.New("there is no place for the log, since neither HOME nor XDG_STATE_HOME is set: name a file with --log-file")
	}
	if m.LogFile == "" {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return nil, nil, fmt.Errorf("make the log's directory (or name a file with --log-file): %w", err)
		}
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	return f, func() { _ = f.Close() }, nil // a log line that is lost here has nowhere to be reported
}

func (m *Mount) newLog(out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(m.LogLevel)) // it is one of the words that --log-level takes
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})).With("mount", m.Point)
}

// logName is the file of the log; "" in the foreground, unless a file was named.
func (m *Mount) logName() string {
	if m.LogFile != "" || m.Foreground {
		return m.LogFile
	}
	return defaultLog()
}

// defaultLog is where a daemon logs that was not told where, "" where there is no place that is its user's own.
func defaultLog() string {
	if os.Geteuid() == 0 {
		return "/var/log/hbmfs.log"
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "hbmfs", "hbmfs.log")
}
