package drain

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

const childEnv = "HBMFS_DRAIN_TEST"

func TestMain(m *testing.M) {
	if dir, to, ok := strings.Cut(os.Getenv(childEnv), "\n"); ok {
		child(dir, to)
	}
	for name, value := range environment() {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	if code := m.Run(); code != 0 {
		os.Exit(code)
	}
	if err := goleak.Find(); err != nil {
		panic(err)
	}
}

// child drains a directory, as a process that can be killed.
func child(dir, to string) {
	opt := fast()
	opt.Connections = 2
	d, err := New(dir, to, opt)
	if err == nil {
		err = d.Once(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
