package leaks

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { Main(m) }

// A goroutine that ends late is no leak: goleak alone gives up after 0.4 s.
func TestGoroutinesMayEndLate(t *testing.T) {
	before := goleak.IgnoreCurrent()
	go time.Sleep(time.Second)
	if err := Goroutines(before); err != nil {
		t.Error(err)
	}
}

// Files that are dropped are closed by the garbage collector. Others are named.
func TestFilesThatAreLeft(t *testing.T) {
	left := Files(t)
	if f, err := os.Open(os.DevNull); err != nil {
		t.Fatal(f, err)
	}
	if err := left(); err != nil {
		t.Errorf("a dropped file: %v", err)
	}
	name := t.TempDir() + "/kept"
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	time.AfterFunc(time.Second, func() { closed <- f.Close() })
	if err := left(); err != nil {
		t.Errorf("a file that is closed late: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if f, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	files, err := openFiles()
	if err != nil || files[name] != 1 {
		t.Errorf("%v, %v", files, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(f)
	if files, err = openFiles(); err != nil || files[name] != 0 || strings.Contains(strings.Join(keys(files), " "), "event") {
		t.Errorf("%v, %v", files, err)
	}
}

func keys(files map[string]int) (names []string) {
	for name := range files {
		names = append(names, name)
	}
	return names
}
