package drain

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

const childEnv = "HBMFS_DRAIN_TEST"

func TestMain(m *testing.M) {
	powerloss.ServeChild()
	if dir, to, ok := strings.Cut(os.Getenv(childEnv), "\n"); ok {
		child(dir, to)
	}
	for name, value := range environment() {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	leaks.Main(m)
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

func wait(t testing.TB, d *Drain, name string, is func(string) bool) {
	t.Helper()
	last := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if last = states(d)[name]; is(last) {
			return
		}
	}
	t.Fatalf("%s is %q", name, last)
}

func until(t testing.TB, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatal("it does not become so")
}
