package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far long work is, with rate and time left, where w is a terminal, and nothing anywhere else.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(w io.Writer, what string, total int64, bytes bool) progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return progress{}
	}
	return progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
		progressbar.OptionClearOnFinish(),
	)}
}

// add counts n more as done. A bar that cannot be drawn is no reason to stop.
func (p progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n)
	}
}

// set says that done of total are done. One goroutine calls it.
func (p progress) set(done, total int64) {
	if p.bar == nil {
		return
	}
	if total > 0 && p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(min(done, total))
}

func (p progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
