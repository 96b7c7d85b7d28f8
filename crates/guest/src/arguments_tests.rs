use super::*;

const DESCRIPTORS: Descriptors = Descriptors {
    monitor: 3,
    agent: 4,
};

fn line(hardware: &Hardware, version: Version) -> Result<String, String> {
    let (kernel, initramfs) = (Path::new("/k"), Path::new("/i"));
    let rate = (hardware.accelerator == Accelerator::Emulated).then_some(2_600_000);
    let list = arguments(hardware, version, kernel, initramfs, rate, DESCRIPTORS);
    list.map(|list| list.join(" "))
        .map_err(|error| error.to_string())
}

const REST: &str = "-chardev stdio,id=console,signal=off -serial chardev:console \
                    -chardev socket,id=monitor,fd=3 -mon chardev=monitor,mode=control";
const END: &str = "-nodefaults -no-reboot -no-user-config -display none";
const APPEND: &str = "-kernel /k -initrd /i -append console=ttyS0 quiet panic=-1 \
                      sysctl.vm.panic_on_oom=1";

#[test]
fn arguments_of_a_plain_guest() {
    for version in [Version(7, 2), Version(9, 1), Version(10, 1)] {
        let hardware = Hardware::new(Flavour::Plain, Accelerator::Emulated);
        let expected = format!(
            "-machine q35 -accel tcg,thread=single -cpu max,-erms,-fsrm -smp 1 -m 512M {APPEND} \
             no_timer_check cryptomgr.notests tsc=reliable tsc_early_khz=2600000 rdinit=/init \
             -- guest-agent {REST} \
             -device virtio-serial-pci,max_ports=2 \
             -chardev socket,id=agent,fd=4 -device virtserialport,chardev=agent,name=org.tare.agent.0 \
             {END}"
        );
        assert_eq!(line(&hardware, version), Ok(expected));
    }
}

#[test]
fn arguments_of_a_guest_with_bounce_buffers_on_a_tap_device() {
    let hardware = Hardware {
        vcpus: 4,
        memory_mib: 1024,
        network: Network::Tap("leg0".into()),
        ..Hardware::new(Flavour::Swiotlb, Accelerator::Kvm)
    };
    let expected = format!(
        "-machine q35 -accel kvm -cpu host -smp 4 -m 1024M {APPEND} swiotlb=force rdinit=/init \
         -- guest-agent {REST} \
         -device virtio-serial-pci,max_ports=2,iommu_platform=on,disable-legacy=on \
         -chardev socket,id=agent,fd=4 -device virtserialport,chardev=agent,name=org.tare.agent.0 \
         -netdev tap,id=net,ifname=leg0,script=no,downscript=no \
         -device virtio-net-pci,netdev=net,romfile=,iommu_platform=on,disable-legacy=on {END}"
    );
    assert_eq!(line(&hardware, Version(7, 2)), Ok(expected));
}

#[test]
fn arguments_of_confidential_guests() {
    for (flavour, version, machine, cpu, object) in [
        (
            Flavour::SevSnp,
            Version(9, 1),
            "q35,confidential-guest-support=cc,vmport=off",
            "EPYC-v4",
            "sev-snp-guest,id=cc,cbitpos=51,reduced-phys-bits=1,policy=0x30000",
        ),
        (
            Flavour::Tdx,
            Version(10, 1),
            "q35,kernel-irqchip=split,confidential-guest-support=cc",
            "host",
            "tdx-guest,id=cc",
        ),
    ] {
        let hardware = Hardware {
            network: Network::User,
            ..Hardware::new(flavour, Accelerator::Kvm)
        };
        let expected = format!(
            "-machine {machine} -accel kvm -cpu {cpu} -smp 1 -m 512M -object {object} \
             -bios /usr/share/ovmf/OVMF.fd {APPEND} rdinit=/init -- guest-agent {REST} \
             -device virtio-serial-pci,max_ports=2,iommu_platform=on,disable-legacy=on \
             -chardev socket,id=agent,fd=4 \
             -device virtserialport,chardev=agent,name=org.tare.agent.0 -netdev user,id=net \
             -device virtio-net-pci,netdev=net,romfile=,iommu_platform=on,disable-legacy=on {END}"
        );
        assert_eq!(line(&hardware, version), Ok(expected.clone()));
        // Later versions take the same; the machine's size and network are as for any flavour.
        let large = Hardware {
            vcpus: 4,
            memory_mib: 4096,
            network: Network::Tap("near".into()),
            ..hardware.clone()
        };
        let expected = expected
            .replace("-smp 1 -m 512M", "-smp 4 -m 4096M")
            .replace(
                "-netdev user,id=net",
                "-netdev tap,id=net,ifname=near,script=no,downscript=no",
            );
        assert_eq!(line(&large, Version(11, 0)), Ok(expected));
        let emulated = Hardware {
            accelerator: Accelerator::Emulated,
            ..hardware
        };
        assert!(line(&emulated, version).unwrap_err().contains("needs KVM"));
    }
}

#[test]
fn versions_and_machines_that_are_not_possible_are_refused_with_what_was_found() {
    let kvm = |flavour| Hardware::new(flavour, Accelerator::Kvm);
    for (hardware, version, expected) in [
        (
            kvm(Flavour::SevSnp),
            Version(9, 0),
            "flavour sev-snp: found QEMU 9.0, expected 9.1",
        ),
        (
            kvm(Flavour::Tdx),
            Version(10, 0),
            "flavour tdx: found QEMU 10.0, expected 10.1",
        ),
        (
            kvm(Flavour::SevSnp),
            Version(8, 2),
            "flavour sev-snp: found QEMU 8.2, expected 9.1 or later",
        ),
        (
            kvm(Flavour::Tdx),
            Version(9, 2),
            "flavour tdx: found QEMU 9.2, expected 10.1 or later",
        ),
        (
            kvm(Flavour::Swiotlb),
            Version(7, 1),
            "flavour swiotlb: found QEMU 7.1, expected 7.2",
        ),
        (
            kvm(Flavour::Plain),
            Version(6, 2),
            "flavour plain: found QEMU 6.2, expected 7.2",
        ),
        (
            Hardware {
                vcpus: 0,
                ..kvm(Flavour::Plain)
            },
            Version(7, 2),
            "processors: found 0, expected 1 to 255",
        ),
        (
            Hardware {
                memory_mib: 127,
                ..kvm(Flavour::Plain)
            },
            Version(7, 2),
            "memory in MiB: found 127, expected 128 to 1048576",
        ),
        (
            Hardware {
                network: Network::Tap("a,script=x".into()),
                ..kvm(Flavour::Plain)
            },
            Version(7, 2),
            "TAP device: found \"a,script=x\"",
        ),
    ] {
        let error = line(&hardware, version).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!("xen"
        .parse::<Flavour>()
        .unwrap_err()
        .contains("plain, swiotlb"));
    for flavour in Flavour::ALL {
        assert_eq!(flavour.name().parse(), Ok(flavour));
    }
}
