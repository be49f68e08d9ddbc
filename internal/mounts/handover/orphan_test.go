package handover

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A keeper that dies has perhaps just told the daemon of a spare. That spare hears of the next keeper all the same.
func TestLastWordsOfAKeeperAreHeard(t *testing.T) {
	for name, leave := range map[string]func(l *Life){
		"before it serves": func(l *Life) { l.leaveKeeper() },
		"while it serves":  func(l *Life) { l.listen(l.socket) },
	} {
		t.Run(name, func(t *testing.T) {
			ours, keeper, err := pair()
			if err != nil {
				t.Fatal(err)
			}
			var news [2]int
			if err := unix.Pipe2(news[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(news[0]) }() // only read
			if name == "before it serves" {
				if err := send(ours, say("PREPARED=1")); err != nil { // which the keeper does not read any more
					t.Fatal(err)
				}
			}
			if err := send(keeper, say("TELLS=1").with(news[1])); err != nil {
				t.Fatal(err)
			}
			_, _ = unix.Close(news[1]), unix.Close(keeper) // the message has its own copy
			l := &Life{socket: ours}
			leave(l)
			if l.socket != -1 {
				t.Errorf("the socket is %d still", l.socket)
			}
			l.mu.Lock()
			l.tells = append(l.tells, -1) // of the next keeper
			l.tellOrphans(newsSpare, 7)
			l.mu.Unlock()
			if word, pid := hearNews(news[0]); word != newsSpare || pid != 7 {
				t.Errorf("the spare hears %q of %d", word, pid)
			}
		})
	}
}

// Two spares of a keeper share a pipe, a stale one and the one that replaces it. Both hear that they are not needed, and neither takes a word that the other
// has read for the end of the daemon.
func TestAllSparesOfAKeeperHear(t *testing.T) {
	for _, last := range []byte{newsSpare, newsOver} {
		var news [2]int
		if err := unix.Pipe2(news[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		l := &Life{tells: []int{news[1], -1}}
		l.tellOrphans(newsKeeper, 7)
		heard := ""
		for range sparesOfPipe {
			word, _ := hearNews(news[0])
			heard += string(word)
		}
		l.tells = l.tells[:1]
		if last == newsSpare {
			l.tells = append(l.tells, -1)
		}
		l.tellOrphans(last, 7)
		for range sparesOfPipe {
			word, _ := hearNews(news[0])
			heard += string(word)
		}
		if word, _ := hearNews(news[0]); word != 0 || heard != string([]byte{newsKeeper, newsHeard, last, last}) {
			t.Errorf("they hear %q, and then %q", heard, word)
		}
		_ = unix.Close(news[0]) // only read
	}
}
