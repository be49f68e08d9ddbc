package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// network is a bridge with an address of this program's, and network namespaces on it. Names have this process's number, so that
// several may run.
type network struct {
	bridge string
	made   map[int]string // namespaces, by the last part of their addresses
}

const subnet = "10.213.77."

func newNetwork() (*network, error) {
	n := &network{bridge: fmt.Sprint("hbm", os.Getpid()), made: map[int]string{}}
	err := ip("link", "add", n.bridge, "type", "bridge")
	if err == nil {
		err = errors.Join(ip("addr", "add", n.address()+"/24", "dev", n.bridge), ip("link", "set", n.bridge, "up"))
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) address() string { return subnet + "1" }

// enter gives the address of a namespace, which it makes if need be, and the command that runs another there.
func (n *network) enter(number int) (address string, command []string, err error) {
	address = fmt.Sprint(subnet, number)
	name := n.made[number]
	if name == "" {
		name = fmt.Sprintf("hbmany-%d-%d", os.Getpid(), number)
		outer, inner := fmt.Sprintf("h%d.%d", os.Getpid(), number), "eth0"
		n.made[number] = name
		for _, args := range [][]string{
			{"netns", "add", name},
			{"link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name},
			{"link", "set", outer, "master", n.bridge, "up"},
			{"-n", name, "addr", "add", address + "/24", "dev", inner},
			{"-n", name, "link", "set", inner, "up"},
			{"-n", name, "link", "set", "lo", "up"},
		} {
			if err := ip(args...); err != nil {
				return "", nil, err
			}
		}
	}
	return address, []string{"nsenter", "--net=/run/netns/" + name}, nil // not ip netns exec, which hides mounts
}

func (n *network) close() (err error) {
	for _, name := range n.made {
		err = errors.Join(err, ip("netns", "del", name)) // its devices go with it
	}
	return errors.Join(err, ip("link", "del", n.bridge))
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
